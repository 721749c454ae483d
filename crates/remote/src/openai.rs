//! Policies behind any OpenAI-compatible endpoint.
//!
//! An endpoint that takes token ids as a prompt and gives back the ids it sampled with their log-probabilities (vLLM and
//! its like) is spoken to in tokens: its episodes are complete records. Any other is spoken to in messages
//! ([`ChatCodec`]): good for evaluation and for agents, refused for training, since nothing vouches for its tokens. Which
//! of the two it is is found out when [`OpenAi::connect`] asks it, and never guessed later.
//!
//! - Source: OpenAI's API reference for `/v1/completions` and `/v1/chat/completions`; vLLM's additions
//!   (`return_token_ids`, `return_tokens_as_token_ids`, `prompt_logprobs`, `stop_token_ids`, `ignore_eos`, `top_k`,
//!   `min_p`) as its server defines them.

mod chat;
mod envelope;
mod error;
mod found;
mod sampler;
mod settings;
mod tokens;

#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod tests;

pub use envelope::ChatCodec;
pub use error::OpenAiError;
pub use found::{Mode, Recorded, Scale};
pub use sampler::OpenAi;
pub use settings::{OpenAiSettings, Purpose, WantedMode};
