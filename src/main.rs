//! The `unwindlab` command; see [`unwindlab::cli`].

fn main() {}
