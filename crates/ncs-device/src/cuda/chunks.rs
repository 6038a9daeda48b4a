//! Kernels that code whole chunks for Reed-Solomon: their names and launches.

use super::HOPPER;
use super::card::Card;
use super::image::Image;
use super::kernels::tensor_steps;
use super::launch::Grid;
use crate::abi::define;

/// A kernel that makes code chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Our kernel for few code chunks of large native ones.
    Stripes,
    /// Our kernel on Hopper's tensor cores, for many code chunks of many native ones.
    Tensor,
    /// A kernel with tiles as deep as the number of native chunks; elements have this many bytes.
    Tiles(&'static str, u32),
    /// A kernel with one thread per byte and thread blocks of 16 x 16 threads.
    Squares(&'static str),
}

/// A launch: its grid, and the values that the kernel needs to know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub entry: (Image, &'static str),
    pub grid: Grid,
    pub tile: (u32, u32),
    pub groups: u32,
}

impl Way {
    /// Looks a kernel up by its name in measurements.
    pub fn named(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|known| known.0 == name)
            .map(|known| known.1)
    }

    /// The kernel for files. Tables serve few code chunks or few native ones. Tensor cores serve
    /// many of both, and cards without room for the tables. Without either, a kernel that works for
    /// any code is taken.
    pub fn of_files(card: &Limits, n: usize, rows: usize) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let has = |way: Self| {
            way.shape(card, count(n), count(rows), 16, (1, 256))
                .is_some()
        };
        let has_tensor = n <= CHUNKS_MAX && has(Self::Tensor);
        match has(Self::Stripes) {
            true if has_tensor && n.min(rows) >= TENSOR_MIN => Self::Tensor,
            true => Self::Stripes,
            false if has_tensor => Self::Tensor,
            false => Self::Squares("nc_rs_naive"),
        }
    }

    /// The launch for `rows` code chunks of n native ones of `bytes` bytes. `None` if the card has
    /// too little memory, or the kernel has no such tile.
    pub fn shape(
        self,
        card: &Limits,
        n: u32,
        rows: u32,
        bytes: u64,
        tile: (u32, u32),
    ) -> Option<Shape> {
        match self {
            Self::Stripes => stripes(card, n, rows),
            Self::Tensor => tensor(card, n, rows, bytes),
            Self::Tiles(entry, element) => {
                let threads = tile
                    .0
                    .checked_mul(tile.1)
                    .filter(|threads| (1..=TILE_THREADS).contains(threads))?;
                let shared_bytes = (tile.0 * n).next_multiple_of(16) + n * tile.1 * element;
                let columns = (bytes / u64::from(element)).div_ceil(u64::from(tile.1));
                let across = u32::try_from(columns)
                    .unwrap_or(u32::MAX)
                    .min(card.sms * TILES_PER_SM)
                    .max(1);
                let grid = Grid {
                    blocks: (across, rows.div_ceil(tile.0), 1),
                    threads,
                    shared_bytes,
                };
                (shared_bytes <= card.shared_bytes - STATIC_MAX).then_some(Shape {
                    entry: (Image::ReedSolomon, entry),
                    grid,
                    tile,
                    groups: 0,
                })
            }
            Self::Squares(entry) => {
                let across = u32::try_from(bytes.div_ceil(16))
                    .unwrap_or(u32::MAX)
                    .min(card.sms * TILES_PER_SM)
                    .max(1);
                let grid = Grid {
                    blocks: (across, rows.div_ceil(16), 1),
                    threads: 256,
                    shared_bytes: 0,
                };
                Some(Shape {
                    entry: (Image::ReedSolomon, entry),
                    grid,
                    tile: (16, 16),
                    groups: 0,
                })
            }
        }
    }
}

/// The properties of a card that decide.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    sms: u32,
    shared_bytes: u32,
    is_hopper: bool,
}

impl Limits {
    pub fn of(card: &Card) -> Self {
        Self {
            sms: card.sms,
            shared_bytes: card.shared_bytes,
            is_hopper: card.capability == HOPPER,
        }
    }
}

/// Takes as many copies of each table as leave room for the groups that read a source byte
/// together.
fn stripes(card: &Limits, n: u32, rows: u32) -> Option<Shape> {
    let all = rows.div_ceil(define("NC_STRIPES_ROWS"));
    let tables = card.shared_bytes / define("NC_STRIPES_TABLE_BYTES");
    let groups = |copies: u32| (tables / (n * copies)).min(all);
    let &(copies, entry) = STRIPES
        .iter()
        .find(|(copies, _)| groups(*copies) >= all.min(GROUPS_MIN))
        .or(STRIPES.last())?;
    let groups = groups(copies);
    if groups == 0 {
        return None;
    }
    let down = all.div_ceil(groups);
    let grid = Grid {
        blocks: ((card.sms / down).max(1), down, 1),
        threads: define("NC_STRIPES_THREADS"),
        shared_bytes: groups * n * copies * define("NC_STRIPES_TABLE_BYTES"),
    };
    Some(Shape {
        entry: (Image::Stripes, entry),
        grid,
        tile: (0, 0),
        groups,
    })
}

/// Takes as many rows from the same tiles as there is room for their bits. All thread blocks get
/// the same work.
fn tensor(card: &Limits, n: u32, rows: u32, bytes: u64) -> Option<Shape> {
    let steps = u32::try_from(tensor_steps(n as usize)).expect("few");
    let units = if n <= TENSOR_UNITS_N {
        define("NC_TENSOR_CHUNKS_UNITS")
    } else {
        1
    };
    let tiles = define("NC_TENSOR_CHUNKS_FIXED") + steps * units * define("NC_TENSOR_CHUNKS_TILES");
    let bits = steps * define("NC_TENSOR_CHUNKS_BITS");
    let room = card
        .shared_bytes
        .min(define("NC_TENSOR_SHARED_MAX"))
        .checked_sub(tiles)?
        / bits;
    if !card.is_hopper || room == 0 {
        return None;
    }
    let all = rows.div_ceil(define("NC_TENSOR_CHUNKS_ROWS"));
    let groups = all.div_ceil(all.div_ceil(room));
    let down = all.div_ceil(groups);
    let columns =
        u32::try_from(bytes.div_ceil(define("NC_TENSOR_UNIT_BYTES").into())).unwrap_or(u32::MAX);
    let grid = Grid {
        blocks: ((card.sms / down).min(columns).max(1), down, 1),
        threads: define("NC_TENSOR_CHUNKS_THREADS"),
        shared_bytes: tiles + groups * bits,
    };
    Some(Shape {
        entry: (Image::Tensor, "nc_tensor_chunks"),
        grid,
        tile: (0, 0),
        groups,
    })
}

/// By the number of table copies, largest first.
const STRIPES: [(u32, &str); 6] = [
    (32, "nc_stripes_32"),
    (16, "nc_stripes_16"),
    (8, "nc_stripes_8"),
    (4, "nc_stripes_4"),
    (2, "nc_stripes_2"),
    (1, "nc_stripes_1"),
];
/// With fewer groups native chunks are read too often.
const GROUPS_MIN: u32 = 3;
/// From this many native and code chunks on, tensor cores are faster than tables. For 128 native
/// and 64 code chunks their rate is 7.5 times as high, for 4 and 196 three fifths (row
/// figure-chunks). In between, the time of a look-up depends on how many copies the tables of that
/// many chunks have, and tensor cores process 32 rows of 32 chunks at a time.
const TENSOR_MIN: usize = 32;
/// The limit of a code, and of the tensor cores' kernel.
const CHUNKS_MAX: usize = 255;
/// With more native chunks there is only room for the tiles of one unit.
const TENSOR_UNITS_N: u32 = 128;
const TILE_THREADS: u32 = define("NC_RS_THREADS");
/// Maximum static shared memory of the ladder's kernels.
const STATIC_MAX: u32 = 8 << 10;
/// More than run at once, so that no multiprocessor waits for the slowest.
const TILES_PER_SM: u32 = 32;

pub const NAMES: &[(&str, Way)] = &[
    ("stripes", Way::Stripes),
    ("tensor", Way::Tensor),
    ("rs-naive", Way::Squares("nc_rs_naive")),
    ("rs-square", Way::Squares("nc_rs_square")),
    ("rs-loop", Way::Tiles("nc_rs_loop", 1)),
    ("rs-full", Way::Tiles("nc_rs_full", 1)),
    ("rs-left-right", Way::Tiles("nc_rs_left_right", 1)),
    ("rs-mod", Way::Tiles("nc_rs_mod", 1)),
    ("rs-mod-serial", Way::Tiles("nc_rs_mod_serial", 1)),
    ("rs-mod-constant", Way::Tiles("nc_rs_mod_constant", 1)),
    ("rs-fold", Way::Tiles("nc_rs_fold", 1)),
    ("rs-fold-serial", Way::Tiles("nc_rs_fold_serial", 1)),
    ("rs-fold-constant", Way::Tiles("nc_rs_fold_constant", 1)),
    ("rs-double", Way::Tiles("nc_rs_double", 1)),
    ("rs-double-serial", Way::Tiles("nc_rs_double_serial", 1)),
    ("rs-double-constant", Way::Tiles("nc_rs_double_constant", 1)),
    ("rs-zero", Way::Tiles("nc_rs_zero", 1)),
    ("rs-zero-serial", Way::Tiles("nc_rs_zero_serial", 1)),
    ("rs-zero-constant", Way::Tiles("nc_rs_zero_constant", 1)),
    ("rs-loop-words", Way::Tiles("nc_rs_loop_words", 4)),
    ("rs-full-words", Way::Tiles("nc_rs_full_words", 4)),
    ("rs-mod-words", Way::Tiles("nc_rs_mod_words", 4)),
    ("rs-zero-words", Way::Tiles("nc_rs_zero_words", 4)),
];

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Limits = Limits {
        sms: 132,
        shared_bytes: 232_448,
        is_hopper: true,
    };

    #[test]
    fn tables_fit_and_all_rows_are_made() {
        for n in 1..=255_u32 {
            for rows in 1..=(256 - n) {
                let Some(shape) = Way::Stripes.shape(&CARD, n, rows, 1 << 20, (1, 256)) else {
                    assert!(n > 227, "{n} {rows}");
                    continue;
                };
                assert!(shape.grid.shared_bytes <= CARD.shared_bytes, "{n} {rows}");
                assert!(shape.groups * shape.grid.blocks.1 * 4 >= rows, "{n} {rows}");
                assert!(
                    (shape.grid.blocks.1 - 1) * shape.groups * 4 < rows,
                    "{n} {rows}"
                );
            }
        }
        let small = Way::Stripes.shape(&CARD, 4, 2, 1 << 20, (1, 256)).unwrap();
        assert_eq!(
            (small.entry.1, small.groups, small.grid.shared_bytes),
            ("nc_stripes_32", 1, 128 << 10)
        );
    }

    #[test]
    fn bits_fit_and_all_rows_are_made() {
        for n in 1..=255_u32 {
            for rows in 1..=(256 - n) {
                let shape = Way::Tensor
                    .shape(&CARD, n, rows, 1 << 20, (1, 256))
                    .expect("there is room for any code");
                assert!(shape.grid.shared_bytes <= CARD.shared_bytes, "{n} {rows}");
                assert!(
                    shape.groups * shape.grid.blocks.1 * 32 >= rows,
                    "{n} {rows}"
                );
                assert!(
                    (shape.grid.blocks.1 - 1) * shape.groups * 32 < rows,
                    "{n} {rows}"
                );
            }
        }
        let shape = |n, rows, bytes| {
            let shape = Way::Tensor.shape(&CARD, n, rows, bytes, (1, 256)).unwrap();
            (shape.groups, shape.grid.blocks, shape.grid.shared_bytes)
        };
        assert_eq!(shape(128, 64, 10 << 20), (2, (132, 1, 1), 197_632));
        assert_eq!(shape(4, 196, 10 << 20), (7, (132, 1, 1), 91_136));
        assert_eq!(shape(4, 196, 528), (7, (2, 1, 1), 91_136));
        assert_eq!(shape(129, 127, 10 << 20), (1, (33, 4, 1), 197_632));
        let older = Limits {
            is_hopper: false,
            ..CARD
        };
        assert_eq!(Way::Tensor.shape(&older, 4, 2, 1 << 20, (1, 256)), None);
    }

    #[test]
    fn files_are_coded_by_what_has_room_and_is_fast() {
        let way = |n, rows| Way::of_files(&CARD, n, rows);
        assert_eq!(
            [way(4, 2), way(4, 196), way(128, 4), way(31, 200)],
            [Way::Stripes; 4]
        );
        assert_eq!(
            [way(32, 32), way(128, 64), way(230, 20), way(255, 1)],
            [Way::Tensor; 4]
        );
        assert_eq!(way(256, 256), Way::Squares("nc_rs_naive"));
        let older = Limits {
            is_hopper: false,
            ..CARD
        };
        assert_eq!(Way::of_files(&older, 128, 64), Way::Stripes);
        assert_eq!(Way::of_files(&older, 230, 20), Way::Squares("nc_rs_naive"));
    }

    #[test]
    fn tiles_have_a_thread_an_element_at_most() {
        let way = Way::named("rs-mod").unwrap();
        assert_eq!(
            way.shape(&CARD, 4, 2, 1 << 20, (1, 256))
                .unwrap()
                .grid
                .threads,
            256
        );
        for tile in [(0, 256), (2, 256), (u32::MAX, 2)] {
            assert_eq!(way.shape(&CARD, 4, 2, 1 << 20, tile), None);
        }
    }
}
