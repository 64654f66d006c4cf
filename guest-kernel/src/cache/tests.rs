//! Tests of `cache`.
