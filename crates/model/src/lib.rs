//! Model families, weights, key/value cache, sampling, forward and backward.
//!
//! One block ([`block`]) serves every family: a family is a file in [`arch`] that turns a configuration into a
//! [`Config`] and names the tensors. Sampling ([`infer`]) and training ([`packed`]) run the same block over rows; they
//! differ only in where attention finds its keys, so what one computes the other reproduces bit by bit.
//!
//! Shape letters used throughout: R rows · D width · F feed-forward width · V vocabulary · L layers · r adapter rank

pub mod adapter;
pub mod arch;
pub mod block;
pub mod cache;
pub mod config;
mod error;
pub mod export;
pub mod head;
pub mod infer;
pub mod load;
pub mod packed;
pub mod params;
pub mod peft;
pub mod rope;
mod top;
mod value;

pub use adapter::{Adapter, Target};
pub use config::Config;
pub use error::ModelError;
pub use infer::Infer;
pub use load::load;
pub use params::{HalfParams, Params};
pub use value::ValueHead;
