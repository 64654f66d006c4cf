//! Tests of `symbols`.
