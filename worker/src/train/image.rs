//! How images lie in buffers: sample, row, column, channel, with a border of zeros around each
//! sample so that convolutions need no special case at the edges.

/// Size of one sample in a buffer of images.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    /// Rows and columns of zeros on each side.
    pub(super) border: usize,
}

impl Shape {
    /// The same image with another border.
    pub(super) const fn with_border(self, border: usize) -> Self {
        Self { border, ..self }
    }

    /// Elements of one sample, border included.
    pub(super) const fn len(&self) -> usize {
        (self.height + 2 * self.border) * self.row_stride()
    }

    /// Elements from one row to the next, border included.
    pub(super) const fn row_stride(&self) -> usize {
        (self.width + 2 * self.border) * self.channels
    }

    /// Elements of one row, border left out.
    pub(super) const fn row_len(&self) -> usize {
        self.width * self.channels
    }

    /// Where pixel `(y, x)` starts within a sample.
    pub(super) const fn pixel(&self, y: usize, x: usize) -> usize {
        (y + self.border) * self.row_stride() + (x + self.border) * self.channels
    }

    /// Where pixel `(y, x)` starts, counted from the corner of the border.
    pub(super) const fn padded_pixel(&self, y: usize, x: usize) -> usize {
        y * self.row_stride() + x * self.channels
    }

    /// Start of every row of every sample, border left out.
    pub(super) fn rows(self, samples: usize) -> impl Iterator<Item = usize> {
        let starts =
            move |sample| (0..self.height).map(move |y| sample * self.len() + self.pixel(y, 0));
        (0..samples).flat_map(starts)
    }
}

/// Images in a buffer that is grown when needed. Only pixels are ever written, so the border stays
/// zero.
#[derive(Debug)]
pub(super) struct Images {
    pub(super) shape: Shape,
    data: Vec<f32>,
}

impl Images {
    pub(super) const fn new(shape: Shape) -> Self {
        Self { shape, data: Vec::new() }
    }

    /// Room for so many samples, with stale pixels.
    pub(super) fn room(&mut self, samples: usize) -> &mut [f32] {
        super::tensors::grown(&mut self.data, samples * self.shape.len())
    }

    /// The first samples, after [`Images::room`] made room for them.
    pub(super) fn get(&self, samples: usize) -> &[f32] {
        &self.data[..samples * self.shape.len()]
    }
}

/// Copies images given as channel, row, column into a buffer of `shape`.
pub(super) fn from_planes(planes: &[f32], shape: Shape, out: &mut [f32]) {
    let plane = shape.height * shape.width;
    let samples =
        planes.chunks_exact(plane * shape.channels).zip(out.chunks_exact_mut(shape.len()));
    for (planes, out) in samples {
        for y in 0..shape.height {
            let row = &mut out[shape.pixel(y, 0)..][..shape.row_len()];
            for (x, pixel) in row.chunks_exact_mut(shape.channels).enumerate() {
                for (channel, value) in pixel.iter_mut().enumerate() {
                    *value = planes[channel * plane + y * shape.width + x];
                }
            }
        }
    }
}

/// Copies images of `shape` into channel, row, column order.
pub(super) fn to_planes(images: &[f32], shape: Shape, out: &mut [f32]) {
    let plane = shape.height * shape.width;
    let samples =
        images.chunks_exact(shape.len()).zip(out.chunks_exact_mut(plane * shape.channels));
    for (image, planes) in samples {
        for y in 0..shape.height {
            let row = &image[shape.pixel(y, 0)..][..shape.row_len()];
            for (x, pixel) in row.chunks_exact(shape.channels).enumerate() {
                for (channel, value) in pixel.iter().enumerate() {
                    planes[channel * plane + y * shape.width + x] = *value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_survive_the_way_in_and_out_and_the_border_stays_zero() {
        let shape = Shape { height: 2, width: 3, channels: 2, border: 1 };
        let planes: Vec<f32> = (1..25).map(|i| i as f32).collect();
        let mut images = Images::new(shape);
        from_planes(&planes, shape, images.room(2));
        assert_eq!(images.get(2)[shape.pixel(0, 1)..][..2], [2.0, 8.0]);
        assert_eq!(images.get(2)[shape.len() + shape.pixel(1, 2)..][..2], [18.0, 24.0]);
        assert_eq!(images.get(2).iter().filter(|value| **value != 0.0).count(), 24);
        let mut back = vec![0.0; 24];
        to_planes(images.get(2), shape, &mut back);
        assert_eq!(back, planes);
        let starts: Vec<usize> = shape.rows(2).collect();
        assert_eq!(starts, [12, 22, 52, 62]);
    }
}
