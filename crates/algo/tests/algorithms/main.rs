//! What the algorithms promise, through their public settings and signals.

mod cases;
mod own;
mod settings;
mod shared;
mod table;
mod tokens;
