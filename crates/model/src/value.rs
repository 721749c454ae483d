//! A value head: one number from a state, beside the distribution over the next token.
//!
//! D width · R rows

use tensor::gemm::{linear, linear_back, weight_grad};
use tensor::rows::column_sums;
use tensor::{Buffer, Cpu, Panels, Term};

use crate::Config;
use crate::params::Storage;

/// One vector and a bias on the final normed state; also the shape of its gradient and of the optimiser's moments.
///
/// - Holds: an f32 product whatever the precision of the others, in the order that every product has.
#[derive(Debug, Clone)]
pub struct ValueHead {
    /// `[1, D]`.
    weight: Panels,
    /// `[1]`.
    bias: Buffer,
}

impl ValueHead {
    /// A head that says 0 of every state.
    pub fn zeroed(c: &Config) -> ValueHead {
        ValueHead { weight: Panels::zeroed(1, c.width), bias: Buffer::zeroed(1) }
    }

    /// Number of weights.
    pub fn n_weights(&self) -> usize {
        self.weight.n_inputs() + 1
    }

    /// The vector, `[D]`.
    pub fn weight(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.weight.n_inputs()];
        self.weight.row(0, &mut out);
        out
    }

    /// The bias.
    pub fn bias(&self) -> f32 {
        self.bias[0]
    }

    /// Sets the vector, `[D]`.
    pub fn set_weight(&mut self, values: &[f32]) {
        self.weight.set_row(0, values);
    }

    /// Sets the bias.
    pub fn set_bias(&mut self, value: f32) {
        self.bias[0] = value;
    }

    /// Every tensor's storage, in a fixed order.
    pub fn storage(&self) -> [Storage<&[f32]>; 2] {
        [Storage::Matrix(self.weight.data()), Storage::Vector(&self.bias)]
    }

    /// As [`ValueHead::storage`], to write.
    pub fn storage_mut(&mut self) -> [Storage<&mut [f32]>; 2] {
        [Storage::Matrix(self.weight.data_mut()), Storage::Vector(&mut self.bias)]
    }

    /// The values of rows that are already normed.
    ///
    /// - Shapes: `h [R, D]`, `out [R]`.
    pub fn forward(&self, cpu: &Cpu, h: &[f32], out: &mut [f32]) {
        let d = self.weight.n_inputs();
        linear(cpu, out.len(), &[Term { x: h, ld: d, w: (&self.weight).into() }], out, 1, false);
        for v in out.iter_mut() {
            *v += self.bias[0];
        }
    }

    /// Adds the derivative by the state to `dh` and, where asked, the head's own to `grad`.
    ///
    /// - Shapes: `h`, `dh` `[R, D]`, `dvalue [R]`.
    /// - Holds: sums over rows in order, continued from one call to the next.
    pub fn backward(&self, cpu: &Cpu, h: &[f32], dvalue: &[f32], dh: &mut [f32], grad: Option<&mut ValueHead>) {
        let (rows, d) = (dvalue.len(), self.weight.n_inputs());
        linear_back(cpu, rows, &[Term { x: dvalue, ld: 1, w: (&self.weight).into() }], dh, d, true);
        if let Some(grad) = grad {
            weight_grad(cpu, rows, (h, d), (dvalue, 1), &mut grad.weight);
            column_sums(cpu, rows, (dvalue, 1), &mut grad.bias);
        }
    }
}
