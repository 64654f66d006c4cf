//! The guest's init.
fn main() {}
