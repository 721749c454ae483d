//! Export to other formats.
