//! What a value head descends.

use serde::{Deserialize, Serialize};

/// Squared error of the value head, pessimistic about large moves: ½·max((V − R)², (clip(V, V_old ± clip) − R)²).
///
/// - Source: arXiv:1707.06347 and its public implementation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueLoss {
    /// How far a value may move in one step before its error stops counting; absent for no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// How much it counts beside the policy's loss.
    pub coefficient: f64,
}
