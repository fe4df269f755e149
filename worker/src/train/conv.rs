//! Square convolution over channels-last images, without an unfolded copy of the input.
//!
//! All three products (output, gradient of the input, gradient of the weights) are tiles of
//! [`super::tile`] over the images as they lie. With a stride, the pixels of the input fall into
//! classes that see different elements of the kernel; each class is a pass of its own, so no work is
//! spent on the zeros that a stretched gradient would have. Without padding, outputs are scattered to
//! the inputs instead.

use super::image::Shape;
use super::tensors::{Gradients, Parameters, tensor};
use super::tile::{self, NARROW, ROWS, WIDE, Walk};
use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;

/// A convolution with weight `[outputs, inputs, kernel, kernel]` and, if there is one, bias.
#[derive(Debug)]
pub(super) struct Conv {
    /// The input; its border is the padding.
    pub(super) x: Shape,
    /// The output, without border.
    pub(super) y: Shape,
    /// The gradient of the output; its border is what the pass to the input needs.
    pub(super) dy: Shape,
    kernel: usize,
    stride: usize,
    weight: TensorId,
    bias: Option<TensorId>,
    output: Pass,
    input_gradient: Vec<Pass>,
    /// Where each kernel element (row, column, channel) starts in the input, see [`padded`].
    elements: Vec<usize>,
    /// The gradient of the weights as `[kernel element, output channel]`.
    sums: Vec<f32>,
}

impl Conv {
    /// The layer `name` over images of shape `x` with the padding `x.border`; the gradient of the
    /// input will be written to images without border.
    pub(super) fn new(layout: &Layout, name: &str, x: Shape, stride: usize) -> Self {
        let weight = tensor(layout, &format!("{name}.weight"));
        let shape = &layout.tensors()[weight.index()].shape;
        let size = |i: usize| usize::try_from(shape[i]).expect("a checked layout fits memory");
        let (outputs, kernel) = (size(0), size(3));
        assert!(size(1) == x.channels && size(2) == kernel && kernel >= stride);
        let across = |size: usize| (size + 2 * x.border - kernel) / stride + 1;
        let (height, width) = (across(x.height), across(x.width));
        let y = Shape { height, width, channels: outputs, border: 0 };
        let axes = [(x.height, height), (x.width, width)];
        let axes = axes.map(|(from, to)| Axis::new(from, to, kernel, stride, x.border));
        // At least the padding, so that layers with and without stride can share a buffer.
        let border = axes[0].border().max(axes[1].border()).max(x.border);
        let dy = y.with_border(if x.border == 0 { 0 } else { border });
        let elements = (0..kernel)
            .flat_map(|row| (0..kernel * x.channels).map(move |i| x.padded_pixel(row, 0) + i));
        Self {
            x,
            y,
            dy,
            kernel,
            stride,
            weight,
            bias: layout.find(&format!("{name}.bias")),
            output: output_pass(x, y, kernel, stride),
            input_gradient: if x.border == 0 {
                scatter_passes(x, dy, kernel, stride)
            } else {
                input_passes(x.with_border(0), dy, kernel, &axes)
            },
            elements: padded(elements.collect()),
            sums: vec![0.0; kernel * kernel * x.channels * outputs],
        }
    }

    /// Images of shape `self.x` → images of shape `self.y`.
    pub(super) fn forward(&mut self, parameters: Parameters<'_>, x: &[f32], y: &mut [f32]) {
        self.output.pack(parameters.get(self.weight));
        let bias = self.bias.map(|bias| parameters.get(bias));
        let samples = x.chunks_exact(self.x.len()).zip(y.chunks_exact_mut(self.y.len()));
        samples.for_each(|(x, y)| self.output.run(x, y, bias, false));
    }

    /// Hands over the gradients of bias and weight, given the input and the gradient `dy` of the
    /// output, of shape `self.dy`.
    pub(super) fn backward_parameters(
        &mut self,
        x: &[f32],
        dy: &[f32],
        gradients: &mut Gradients<'_>,
    ) {
        if let Some(bias) = self.bias {
            let samples = dy.len() / self.dy.len();
            gradients.hand_over(bias, |sum| {
                sum.fill(0.0);
                for start in self.dy.rows(samples) {
                    for pixel in dy[start..][..self.dy.row_len()].chunks_exact(sum.len()) {
                        sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += value);
                    }
                }
            });
        }
        self.sums.fill(0.0);
        let samples = x.chunks_exact(self.x.len()).zip(dy.chunks_exact(self.dy.len()));
        samples.for_each(|(x, dy)| self.add_weight_gradient(x, dy));
        let area = self.kernel * self.kernel;
        let (outputs, inputs) = (self.y.channels, self.x.channels);
        gradients.hand_over(self.weight, |dw| {
            for (output, dw) in dw.chunks_exact_mut(inputs * area).enumerate() {
                for (input, dw) in dw.chunks_exact_mut(area).enumerate() {
                    for (place, dw) in dw.iter_mut().enumerate() {
                        *dw = self.sums[(place * inputs + input) * outputs + output];
                    }
                }
            }
        });
    }

    /// Writes the gradient of the input to images without border; adds it with `add`.
    pub(super) fn backward_input(
        &mut self,
        parameters: Parameters<'_>,
        dy: &[f32],
        dx: &mut [f32],
        add: bool,
    ) {
        let dx_len = self.x.with_border(0).len();
        // Without padding the passes overlap.
        if self.x.border == 0 && !add {
            dx.fill(0.0);
        }
        let add = add || self.x.border == 0;
        for pass in &mut self.input_gradient {
            pass.pack(parameters.get(self.weight));
            let samples = dy.chunks_exact(self.dy.len()).zip(dx.chunks_exact_mut(dx_len));
            samples.for_each(|(dy, dx)| pass.run(dy, dx, None, add));
        }
    }

    /// Adds one sample's share to the sums: rows are kernel elements, steps are pixels.
    fn add_weight_gradient(&mut self, x: &[f32], dy: &[f32]) {
        let columns = self.y.channels;
        let walk = Walk {
            runs: self.y.height,
            count: self.y.width,
            a_step: self.stride * self.x.channels,
            a_run: self.stride * self.x.row_stride(),
            b_step: columns,
            b_run: self.dy.row_stride(),
        };
        let first = self.dy.pixel(0, 0);
        let count = self.sums.len() / columns;
        for (tile, rows) in self.elements.as_chunks::<ROWS>().0.iter().enumerate() {
            let rows_left = (count - tile * ROWS).min(ROWS);
            let sums = &mut self.sums[tile * ROWS * columns..][..rows_left * columns];
            let mut column = 0;
            while column + WIDE <= columns {
                let values = tile::wide(x, rows, &dy[first + column..], walk);
                add_columns(sums, columns, column, 0, &values);
                column += WIDE;
            }
            while column < columns && columns >= NARROW {
                // The last tile reaches back over columns that are done, and leaves them alone.
                let start = column.min(columns - NARROW);
                let values = tile::narrow(x, rows, &dy[first + start..], walk);
                add_columns(sums, columns, start, column - start, &values);
                column = start + NARROW;
            }
            while column < columns {
                let values: [[f32; 1]; ROWS] = tile::portable(x, rows, &dy[first + column..], walk);
                add_columns(sums, columns, column, 0, &values);
                column += 1;
            }
        }
    }
}

/// Adds a tile to rows of `columns` sums from column `start` on, leaving out its first `skip`.
fn add_columns<const N: usize>(
    sums: &mut [f32],
    columns: usize,
    start: usize,
    skip: usize,
    values: &[[f32; N]; ROWS],
) {
    for (sums, values) in sums.chunks_exact_mut(columns).zip(values) {
        let sums = &mut sums[start + skip..start + N];
        sums.iter_mut().zip(&values[skip..]).for_each(|(sum, value)| *sum += value);
    }
}

/// Fills the last tile by repeating the last entry; what it computes is not stored.
fn padded(mut starts: Vec<usize>) -> Vec<usize> {
    let last = starts.last().copied().unwrap_or(0);
    starts.resize(starts.len().next_multiple_of(ROWS), last);
    starts
}

/// A product of image patches with weights: each pixel of the result is a row of a tile.
#[derive(Debug)]
struct Pass {
    /// Where each result's patch starts, see [`padded`].
    reads: Vec<usize>,
    /// Where each result goes.
    writes: Vec<usize>,
    /// Channels of a result.
    columns: usize,
    walk: Walk,
    /// Position in the weight tensor of each step's and column's weight: step by step.
    sources: Vec<usize>,
    /// The weights in panels of [`WIDE`] columns, the last narrow if that is enough: panel by
    /// panel, step by step, zeros for columns that are not there.
    panels: Vec<f32>,
}

/// Start of each panel's columns and its width.
fn panels(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    let width = move |start| if columns - start > NARROW { WIDE } else { NARROW };
    (0..columns).step_by(WIDE).map(move |start| (start, width(start)))
}

impl Pass {
    /// `source(run, step, column)` names the weight.
    fn new(
        pixels: Vec<(usize, usize)>,
        columns: usize,
        (runs, count, a_run): (usize, usize, usize),
        source: impl Fn(usize, usize, usize) -> usize,
    ) -> Self {
        let (reads, writes) = pixels.into_iter().unzip();
        let steps = (0..runs).flat_map(|run| (0..count).map(move |step| (run, step)));
        let sources = steps
            .flat_map(|(run, step)| (0..columns).map(move |column| (run, step, column)))
            .map(|(run, step, column)| source(run, step, column));
        let floats: usize = panels(columns).map(|(_, width)| runs * count * width).sum();
        Self {
            reads: padded(reads),
            writes,
            columns,
            walk: Walk { runs, count, a_step: 1, a_run, b_step: 0, b_run: 0 },
            sources: sources.collect(),
            panels: vec![0.0; floats],
        }
    }

    /// Puts the weights of this step into tile order.
    fn pack(&mut self, weights: &[f32]) {
        let steps = self.walk.runs * self.walk.count;
        let mut rest = &mut self.panels[..];
        for (start, width) in panels(self.columns) {
            let (panel, after) = rest.split_at_mut(steps * width);
            let end = self.columns.min(start + width);
            let sources = self.sources.chunks_exact(self.columns);
            for (row, sources) in panel.chunks_exact_mut(width).zip(sources) {
                for (weight, source) in row.iter_mut().zip(&sources[start..end]) {
                    *weight = weights[*source];
                }
            }
            rest = after;
        }
    }

    /// One sample.
    fn run(&self, x: &[f32], y: &mut [f32], bias: Option<&[f32]>, add: bool) {
        let steps = self.walk.runs * self.walk.count;
        let mut rest = &self.panels[..];
        for (start, width) in panels(self.columns) {
            let (panel, after) = rest.split_at(steps * width);
            let walk = Walk { b_step: width, b_run: self.walk.count * width, ..self.walk };
            let columns = start..self.columns.min(start + width);
            let bias = bias.map(|bias| &bias[columns.clone()]);
            let tiles = self.reads.as_chunks::<ROWS>().0.iter().zip(self.writes.chunks(ROWS));
            for (reads, writes) in tiles {
                if width == WIDE {
                    let values = tile::wide(x, reads, panel, walk);
                    store(&values, y, writes, columns.clone(), bias, add);
                } else {
                    let values = tile::narrow(x, reads, panel, walk);
                    store(&values, y, writes, columns.clone(), bias, add);
                }
            }
            rest = after;
        }
    }
}

/// Stores a tile: result `i` starts at `writes[i]`, of which `columns` are these.
#[inline(always)]
fn store<const N: usize>(
    values: &[[f32; N]; ROWS],
    y: &mut [f32],
    writes: &[usize],
    columns: std::ops::Range<usize>,
    bias: Option<&[f32]>,
    add: bool,
) {
    for (values, write) in values.iter().zip(writes) {
        let y = &mut y[write + columns.start..write + columns.end];
        if add {
            y.iter_mut().zip(values).for_each(|(y, value)| *y += value);
        } else if let Some(bias) = bias {
            for ((y, value), bias) in y.iter_mut().zip(values).zip(bias) {
                *y = value + bias;
            }
        } else {
            y.copy_from_slice(&values[..y.len()]);
        }
    }
}

/// Rows are output pixels, runs are kernel rows, steps go through columns and channels.
fn output_pass(x: Shape, y: Shape, kernel: usize, stride: usize) -> Pass {
    let pixels = (0..y.height).flat_map(|row| (0..y.width).map(move |column| (row, column)));
    let pixels = pixels
        .map(|(row, column)| (x.padded_pixel(row * stride, column * stride), y.pixel(row, column)));
    let steps = (kernel, kernel * x.channels, x.row_stride());
    Pass::new(pixels.collect(), y.channels, steps, |run, step, output| {
        let (column, input) = (step / x.channels, step % x.channels);
        ((output * x.channels + input) * kernel + run) * kernel + column
    })
}

/// One pass per kernel row, for a convolution without padding: each output pixel adds to the inputs
/// it came from. Reading outputs through a border would cost `input / output` pixels more.
fn scatter_passes(dx: Shape, dy: Shape, kernel: usize, stride: usize) -> Vec<Pass> {
    let inputs = dx.channels;
    let pass = |down: usize| {
        let pixels = (0..dy.height).flat_map(|row| (0..dy.width).map(move |column| (row, column)));
        let pixels = pixels.map(|(row, column)| {
            (dy.pixel(row, column), dx.pixel(row * stride + down, column * stride))
        });
        Pass::new(pixels.collect(), kernel * inputs, (1, dy.channels, 0), |_, output, column| {
            let (across, input) = (column / inputs, column % inputs);
            ((output * inputs + input) * kernel + down) * kernel + across
        })
    };
    (0..kernel).map(pass).collect()
}

/// One pass per class of input pixels, for a convolution with padding. Input pixel `i` along an axis was multiplied by kernel
/// elements `k = r + stride × j` with `r = (i + padding) mod stride` into outputs `q - j` with
/// `q = (i + padding) / stride`; reading the outputs upwards takes the elements downwards.
fn input_passes(dx: Shape, dy: Shape, kernel: usize, axes: &[Axis; 2]) -> Vec<Pass> {
    let [rows, columns] = axes;
    let classes = (0..rows.stride).flat_map(|r| (0..rows.stride).map(move |c| (r, c)));
    let passes = classes.map(|(r, c)| {
        let across = columns.elements(c);
        let pixels =
            rows.class(r).flat_map(|y| columns.class(c).map(move |x| (y, x))).map(|(y, x)| {
                let from = dy.padded_pixel(rows.first(y, dy.border), columns.first(x, dy.border));
                (from, dx.pixel(y, x))
            });
        let steps = (rows.elements(r), across * dy.channels, dy.row_stride());
        Pass::new(pixels.collect(), dx.channels, steps, |run, step, input| {
            let (column, output) = (step / dy.channels, step % dy.channels);
            let row = r + rows.stride * (rows.elements(r) - 1 - run);
            let column = c + columns.stride * (across - 1 - column);
            ((output * dx.channels + input) * kernel + row) * kernel + column
        })
    });
    passes.filter(|pass| !pass.writes.is_empty()).collect()
}

/// One direction of a convolution, seen from the input.
#[derive(Clone, Copy, Debug)]
struct Axis {
    from: usize,
    to: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl Axis {
    const fn new(from: usize, to: usize, kernel: usize, stride: usize, padding: usize) -> Self {
        Self { from, to, kernel, stride, padding }
    }

    /// Kernel elements that class `r` sees.
    const fn elements(&self, r: usize) -> usize {
        (self.kernel - r).div_ceil(self.stride)
    }

    /// Input pixels of class `r`.
    fn class(self, r: usize) -> impl Iterator<Item = usize> + Clone {
        (0..self.from).filter(move |i| (i + self.padding) % self.stride == r)
    }

    /// First output that input pixel `i` went into, counted from the edge of a border.
    const fn first(&self, i: usize, border: usize) -> usize {
        let at = i + self.padding;
        at / self.stride + border + 1 - self.elements(at % self.stride)
    }

    /// The border that keeps every such output, and the last, inside the buffer.
    fn border(&self) -> usize {
        let before = |i: usize| self.elements((i + self.padding) % self.stride) - 1;
        let at = |i: usize| (i + self.padding) / self.stride;
        let needs = (0..self.from)
            .map(|i| before(i).saturating_sub(at(i)).max((at(i) + 1).saturating_sub(self.to)));
        needs.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout, numbers};
    use super::super::image::{Images, from_planes, to_planes};
    use super::*;

    /// Takes and gives images as channel, row, column.
    struct Planes(Conv);

    impl Planes {
        fn images(planes: &[f32], shape: Shape) -> Vec<f32> {
            let mut images = Images::new(shape);
            let samples = planes.len() / shape.with_border(0).len();
            from_planes(planes, shape, images.room(samples));
            images.get(samples).to_vec()
        }
    }

    impl Differentiable for Planes {
        fn forward(&mut self, parameters: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let x = Self::images(x, self.0.x);
            let mut y = vec![f32::NAN; x.len() / self.0.x.len() * self.0.y.len()];
            self.0.forward(parameters, &x, &mut y);
            let mut planes = y.clone();
            to_planes(&y, self.0.y, &mut planes);
            planes
        }

        fn backward(
            &mut self,
            parameters: Parameters<'_>,
            x: &[f32],
            dy: &[f32],
            gradients: &mut Gradients<'_>,
        ) -> Vec<f32> {
            let dy = Self::images(dy, self.0.dy);
            self.0.backward_parameters(&Self::images(x, self.0.x), &dy, gradients);
            let mut dx = vec![f32::NAN; x.len()];
            self.0.backward_input(parameters, &dy, &mut dx, false);
            self.0.backward_input(parameters, &dy, &mut dx, true);
            let mut planes = dx.clone();
            to_planes(&dx, self.0.x.with_border(0), &mut planes);
            planes.iter().map(|twice| twice / 2.0).collect()
        }
    }

    /// kernel, stride, padding, height, width, inputs, outputs
    fn case(sizes: [usize; 7]) -> (Layout, Planes) {
        let [kernel, stride, border, height, width, inputs, outputs] = sizes;
        let shape = [outputs, inputs, kernel, kernel].map(|size| size as u64);
        let layout = layout(&[("c.weight", &shape), ("c.bias", &[outputs as u64])]);
        let x = Shape { height, width, channels: inputs, border };
        let conv = Conv::new(&layout, "c", x, stride);
        (layout, Planes(conv))
    }

    #[test]
    fn convolution_gradients_are_those_of_finite_differences() {
        for sizes in [
            [3, 1, 1, 5, 4, 2, 3],
            [3, 1, 1, 4, 4, 3, 17],
            [3, 2, 1, 6, 6, 2, 9],
            [3, 2, 1, 5, 7, 2, 2],
            [3, 2, 1, 1, 1, 2, 2],
            [5, 1, 0, 7, 6, 1, 20],
            [5, 1, 0, 5, 6, 9, 3],
            [5, 3, 2, 8, 8, 1, 2],
            [3, 2, 0, 8, 6, 5, 7],
        ] {
            let (layout, mut layer) = case(sizes);
            let inputs = 2 * layer.0.x.with_border(0).len();
            check(&layout, inputs, 0.5, &mut layer);
        }
    }

    #[test]
    fn a_convolution_is_the_sum_that_defines_it() {
        let [kernel, stride, padding, height, width, inputs, outputs] = [3, 2, 1, 7, 6, 3, 18];
        let (layout, mut layer) = case([kernel, stride, padding, height, width, inputs, outputs]);
        let flat = numbers(1, layout.elements());
        let x = numbers(2, inputs * height * width);
        let y = layer.forward(Parameters::new(&layout, &flat), &x);
        let (rows, columns) = (layer.0.y.height, layer.0.y.width);
        assert_eq!((rows, columns, y.len()), (4, 3, 18 * 12));
        for (i, y) in y.iter().enumerate() {
            let (output, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
            let mut sum = f64::from(flat[outputs * inputs * 9 + output]);
            for (k, weight) in flat[output * inputs * 9..][..inputs * 9].iter().enumerate() {
                let (input, down, across) = (k / 9, k / 3 % 3, k % 3);
                let (down, across) = (row * stride + down, column * stride + across);
                if (1..=height).contains(&down) && (1..=width).contains(&across) {
                    let at = (input * height + down - 1) * width + across - 1;
                    sum += f64::from(*weight) * f64::from(x[at]);
                }
            }
            assert!((f64::from(*y) - sum).abs() < 1e-5, "output {i}: {y} for {sum}");
        }
    }
}
