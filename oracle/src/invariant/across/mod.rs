//! Across clients: perf, instances of tracefs and the lab client, each in a buffer of its own.

pub mod t1_one_cookie;
pub mod t2_one_stack;
#[cfg(test)]
mod tests;
