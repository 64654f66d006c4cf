//! Tests of the private apt root.
