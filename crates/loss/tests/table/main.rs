//! What holds for every entry of the tables: each term × reduction × correction × KL.

mod derivatives;
mod invariances;
mod metrics;
mod oracle;
mod rows;
