//! Tests of `kallsyms`.
