//! The sources of a combination, and their layout in memory.

/// A cache line: the unit of the sources' layout, aligned for every vector.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub(super) [u8; Self::BYTES]);

impl Line {
    /// Bytes of a line.
    pub const BYTES: usize = 64;
    /// A line of zeros.
    pub const ZERO: Self = Self([0; Self::BYTES]);

    /// The bytes of consecutive lines.
    pub fn bytes(lines: &[Self]) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding (its size equals its alignment), so `lines`
        // covers as many initialised bytes, borrowed for as long.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
    }

    /// The bytes of consecutive lines, to change.
    pub fn bytes_mut(lines: &mut [Self]) -> &mut [u8] {
        // SAFETY: as in `bytes`; every value of these bytes is a valid line, and the borrow is
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
    }
}

/// The places of a combination's sources.
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        all(target_arch = "wasm32", target_feature = "simd128")
    )),
    expect(
        dead_code,
        reason = "only wide instructions read sources where they are"
    )
)]
pub(super) trait Sources: Copy {
    /// The number of sources.
    fn count(self) -> usize;
    /// A pointer to a byte of a source.
    ///
    /// # Safety
    /// The source exists, and has so many bytes.
    unsafe fn at(self, source: usize, byte: usize) -> *const u8;
}

/// Sources anywhere in memory.
#[derive(Clone, Copy)]
pub(super) struct Apart<'a> {
    pub(super) sources: &'a [&'a [u8]],
}

impl Sources for Apart<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        self.sources.len()
    }

    #[inline(always)]
    unsafe fn at(self, source: usize, byte: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.sources.get_unchecked(source).as_ptr().add(byte) }
    }
}

impl Sources for Strip<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        self.count
    }

    #[inline(always)]
    unsafe fn at(self, source: usize, byte: usize) -> *const u8 {
        let start = (source * self.stride + self.first) * Line::BYTES + byte;
        // SAFETY: within the strip by the caller's promise, and within its lines by `Strip::new`.
        unsafe { self.lines.as_ptr().cast::<u8>().add(start) }
    }
}

/// `count` sources of `width` lines: source i starts at line i * `stride` + `first`.
#[derive(Debug, Clone, Copy)]
pub struct Strip<'a> {
    lines: &'a [Line],
    pub(super) count: usize,
    stride: usize,
    first: usize,
    pub(super) width: usize,
}

impl<'a> Strip<'a> {
    /// A strip; checks that all sources lie within `lines`.
    pub fn new(lines: &'a [Line], count: usize, stride: usize, first: usize, width: usize) -> Self {
        assert!(
            lines.len() >= count * stride && first + width <= stride,
            "{count} sources of {width} lines"
        );
        Self {
            lines,
            count,
            stride,
            first,
            width,
        }
    }

    pub(super) fn source(&self, i: usize) -> &'a [u8] {
        let start = i * self.stride + self.first;
        Line::bytes(&self.lines[start..start + self.width])
    }
}
