//! No selection: every token learns.
//!
//! Source: nothing to cite; the setting every other selection is compared with.

use serde::{Deserialize, Serialize};

use super::{Chosen, SelectRule, StepRow};
use crate::LossError;

/// No selection: every token learns.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unselected {}

impl SelectRule for Unselected {
    fn choose(&self, _rows: &[StepRow<'_>], _seed: u64) -> Result<Chosen, LossError> {
        Ok(Chosen::default())
    }
}
