//! Tests of `image`.
