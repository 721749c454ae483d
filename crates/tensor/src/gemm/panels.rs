//! A weight matrix cut into panels of up to 64 outputs, the one copy that forward, backward and optimiser use.
//!
//! N outputs · K inputs

use std::ops::Range;

use crate::Buffer;
use crate::lanes::LANES;

/// Outputs a panel holds at most: four 512-bit vectors.
pub(super) const PANEL: usize = 64;

/// A stretch of outputs with its own inputs, such as `q` in a fused `q|k|v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which outputs (columns of the result).
    pub outputs: Range<usize>,
    /// Which columns of the input it reads.
    pub inputs: Range<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// First output.
    pub(crate) col: usize,
    /// Outputs that exist, at most 64.
    pub(crate) width: usize,
    /// Outputs stored, a multiple of 16; those past `width` are zero.
    pub(crate) lanes: usize,
    /// First input column.
    pub(crate) input: usize,
    /// Number of inputs.
    pub(crate) k: usize,
    /// Where it starts in the data.
    pub(crate) start: usize,
}

/// A matrix `W [N, K]` for y = x Wᵀ, in panels: each holds, for every input, the weights of its outputs side by side.
///
/// - Shapes: panel data `[K, lanes]`, outputs past the panel's width are zero and stay zero.
/// - Holds: no panel crosses a part's edge.
#[derive(Debug, Clone)]
pub struct Panels {
    n_outputs: usize,
    n_inputs: usize,
    parts: Vec<Part>,
    panels: Vec<Panel>,
    data: Buffer,
}

impl Panels {
    /// Zeros for one part: `n` outputs of `k` inputs.
    pub fn zeroed(n: usize, k: usize) -> Panels {
        Panels::with_parts(vec![Part { outputs: 0..n, inputs: 0..k }])
    }

    /// Zeros for parts in ascending order of outputs.
    pub fn with_parts(parts: Vec<Part>) -> Panels {
        let (mut panels, mut start) = (Vec::new(), 0);
        for part in &parts {
            let mut col = part.outputs.start;
            while col < part.outputs.end {
                let width = (part.outputs.end - col).min(PANEL);
                let lanes = width.next_multiple_of(LANES);
                panels.push(Panel { col, width, lanes, input: part.inputs.start, k: part.inputs.len(), start });
                start += lanes * part.inputs.len();
                col += width;
            }
        }
        let n_outputs = parts.iter().map(|p| p.outputs.end).max().unwrap_or(0);
        let n_inputs = parts.iter().map(|p| p.inputs.end).max().unwrap_or(0);
        Panels { n_outputs, n_inputs, parts, panels, data: Buffer::zeroed(start) }
    }

    /// Zeros of the same shape.
    pub fn zeros_like(&self) -> Panels {
        Panels { data: Buffer::zeroed(self.data.len()), ..self.clone_shape() }
    }

    fn clone_shape(&self) -> Panels {
        Panels {
            n_outputs: self.n_outputs,
            n_inputs: self.n_inputs,
            parts: self.parts.clone(),
            panels: self.panels.clone(),
            data: Buffer::zeroed(0),
        }
    }

    /// Number of outputs, gaps between parts counted.
    pub fn n_outputs(&self) -> usize {
        self.n_outputs
    }

    /// Number of input columns read.
    pub fn n_inputs(&self) -> usize {
        self.n_inputs
    }

    /// The parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Every weight, padding included, in storage order: what an element-wise optimiser walks over.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// As [`Panels::data`], to write.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    pub(crate) fn panels(&self) -> &[Panel] {
        &self.panels
    }

    pub(crate) fn panel_data(&self, panel: &Panel) -> &[f32] {
        &self.data[panel.start..panel.start + panel.lanes * panel.k]
    }

    fn place(&self, output: usize) -> (&Panel, usize) {
        let index = self.panels.partition_point(|p| p.col + p.width <= output);
        let panel = &self.panels[index];
        assert!(panel.col <= output, "output {output} lies between parts");
        (panel, output - panel.col)
    }

    /// Writes one output's weights, `[k of its part]`.
    pub fn set_row(&mut self, output: usize, row: &[f32]) {
        let (panel, lane) = self.place(output);
        let (start, lanes, k) = (panel.start, panel.lanes, panel.k);
        assert_eq!(row.len(), k, "row of output {output}");
        for (i, w) in row.iter().enumerate() {
            self.data[start + i * lanes + lane] = *w;
        }
    }

    /// Reads one output's weights, `[k of its part]`.
    pub fn row(&self, output: usize, row: &mut [f32]) {
        let (panel, lane) = self.place(output);
        assert_eq!(row.len(), panel.k, "row of output {output}");
        for (w, column) in row.iter_mut().zip(self.data[panel.start..].chunks(panel.lanes)) {
            *w = column[lane];
        }
    }

    /// Adds to one output's weights, in place; for the gradient of an embedding row.
    pub fn add_to_row(&mut self, output: usize, row: &[f32]) {
        let (panel, lane) = self.place(output);
        let (start, lanes) = (panel.start, panel.lanes);
        for (i, w) in row.iter().enumerate() {
            self.data[start + i * lanes + lane] += *w;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_panels_respect_parts() {
        let parts = vec![Part { outputs: 0..70, inputs: 0..5 }, Part { outputs: 70..73, inputs: 5..7 }];
        let mut w = Panels::with_parts(parts);
        for n in 0..73 {
            let k = if n < 70 { 5 } else { 2 };
            let row: Vec<f32> = (0..k).map(|i| (n * 10 + i) as f32).collect();
            w.set_row(n, &row);
        }
        let mut row = [0.0; 5];
        w.row(69, &mut row);
        assert_eq!(row, [690.0, 691.0, 692.0, 693.0, 694.0]);
        w.row(71, &mut row[..2]);
        assert_eq!(row[..2], [710.0, 711.0]);
        assert_eq!(w.panels().iter().map(|p| p.width).collect::<Vec<_>>(), [64, 6, 3]);
        assert_eq!((w.n_outputs(), w.n_inputs()), (73, 7));
    }
}
