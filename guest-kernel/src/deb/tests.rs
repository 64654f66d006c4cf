//! Tests of `deb`.
