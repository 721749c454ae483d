//! What the algorithms promise, through their public settings and signals.

mod cases;
mod settings;
mod shared;
