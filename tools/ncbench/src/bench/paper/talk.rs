//! The talk's ways to multiply two bytes, written as on its slides: by shifting and adding, by one
//! large table or two small ones, and by logarithms in four ways. What it calls the baseline takes
//! a remainder and two branches; its improvements 1 to 3 remove one of these, then the other.
//!
//! | way | bytes of tables | for a product |
//! |---|---|---|
//! | [`Loop`](Way::Loop) | 0 | at most eight steps |
//! | [`Full`](Way::Full) | 65,536 | a lookup |
//! | [`LeftRight`](Way::LeftRight) | 8,192 | 2 lookups, 2 AND, a shift, an XOR |
//! | [`Remainder`](Way::Remainder) | 512 | 3 lookups, a sum, a remainder, 2 branches |
//! | [`Fold`](Way::Fold) | 512 | the same with AND, shift and sum in place of the remainder |
//! | [`Double`](Way::Double) | 768 | 3 lookups, a sum, 2 branches |
//! | [`Zero`](Way::Zero) | 1,536 | 3 lookups, a sum |

use std::sync::LazyLock;

use ncs_gf::gf256;

/// A way to multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Loop,
    Full,
    LeftRight,
    /// The talk's baseline.
    Remainder,
    /// Its improvement 1: 256 is 1 where 255 is 0.
    Fold,
    /// Its improvement 2: exp is twice as long.
    Double,
    /// Its improvement 3: the logarithm of zero points to where exp is zero.
    Zero,
}

impl Way {
    /// All of them.
    pub(super) const ALL: [Self; 7] = [
        Self::Loop,
        Self::Full,
        Self::LeftRight,
        Self::Remainder,
        Self::Fold,
        Self::Double,
        Self::Zero,
    ];

    /// Its name among contenders; the talk's kernels on a GPU go by the same.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Full => "full",
            Self::LeftRight => "left-right",
            Self::Remainder => "mod",
            Self::Fold => "fold",
            Self::Double => "double",
            Self::Zero => "zero",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Multiplies rows with sources, one output byte at a time. All sources and outputs have one
    /// length.
    pub(super) fn combine<'a>(
        self,
        rows: impl Iterator<Item = &'a [u8]>,
        sources: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) {
        let Tables {
            products,
            left,
            right,
            log,
            exp,
            log_of_zero,
            exp_and_zeros,
        } = &*TABLES;
        let logs = |a: u8, b: u8| u16::from(log[usize::from(a)]) + u16::from(log[usize::from(b)]);
        match self {
            Self::Loop => each(gf256::mul, rows, sources, outs),
            Self::Full => each(
                |a, b| products[usize::from(a)][usize::from(b)],
                rows,
                sources,
                outs,
            ),
            Self::LeftRight => {
                let product = |a, b: u8| {
                    left[usize::from(a)][usize::from(b >> 4)]
                        ^ right[usize::from(a)][usize::from(b & 15)]
                };
                each(|a: u8, b| product(a, b), rows, sources, outs);
            }
            Self::Remainder => each(
                unless_zero(|a, b| exp[usize::from(logs(a, b) % 255)]),
                rows,
                sources,
                outs,
            ),
            Self::Fold => {
                each(
                    unless_zero(|a, b| exp[usize::from((logs(a, b) & 255) + (logs(a, b) >> 8))]),
                    rows,
                    sources,
                    outs,
                );
            }
            Self::Double => each(
                unless_zero(|a, b| gf256::EXP[usize::from(logs(a, b))]),
                rows,
                sources,
                outs,
            ),
            Self::Zero => {
                // Without the mask the compiler would look whether the sum is in range: a branch.
                let sum = |a: u8, b: u8| log_of_zero[usize::from(a)] + log_of_zero[usize::from(b)];
                each(
                    |a, b| exp_and_zeros[usize::from(sum(a, b)) % ZEROS_END],
                    rows,
                    sources,
                    outs,
                );
            }
        }
    }
}

fn unless_zero(product: impl Fn(u8, u8) -> u8) -> impl Fn(u8, u8) -> u8 {
    move |a, b| if a == 0 || b == 0 { 0 } else { product(a, b) }
}

fn each<'a>(
    mul: impl Fn(u8, u8) -> u8,
    rows: impl Iterator<Item = &'a [u8]>,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
) {
    for (row, out) in rows.zip(outs) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = row
                .iter()
                .zip(sources)
                .fold(0, |sum, (&c, source)| sum ^ mul(c, source[at]));
        }
    }
}

struct Tables {
    products: Vec<[u8; 256]>,
    /// Products of each element with high halves, and with low ones.
    left: Vec<[u8; 16]>,
    right: Vec<[u8; 16]>,
    log: [u8; 256],
    exp: [u8; 256],
    log_of_zero: [u16; 256],
    exp_and_zeros: [u8; ZEROS_END],
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let row = |a| std::array::from_fn(|b| gf256::mul(a, element(b)));
    let mut exp_and_zeros = [0; ZEROS_END];
    exp_and_zeros[..usize::from(LOG_OF_ZERO)]
        .copy_from_slice(&gf256::EXP[..usize::from(LOG_OF_ZERO)]);
    let log_of = |a| {
        if a == 0 {
            LOG_OF_ZERO
        } else {
            u16::from(gf256::LOG[a])
        }
    };
    Tables {
        products: (0..=255).map(row).collect(),
        left: (0..=255)
            .map(|a| std::array::from_fn(|half| gf256::mul(a, element(half << 4))))
            .collect(),
        right: (0..=255)
            .map(|a| std::array::from_fn(|half| gf256::mul(a, element(half))))
            .collect(),
        log: gf256::LOG,
        exp: std::array::from_fn(|power| gf256::EXP[power]),
        log_of_zero: std::array::from_fn(log_of),
        exp_and_zeros,
    }
});

fn element(number: usize) -> u8 {
    u8::try_from(number).expect("an index below 256")
}

/// Two logarithms are 254 at most.
const LOG_OF_ZERO: u16 = 2 * 254 + 1;
const ZEROS_END: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn product(way: Way, a: u8, b: u8) -> u8 {
        let mut out = [0xEE];
        way.combine([&[a][..]].into_iter(), &[&[b]], &mut [&mut out]);
        out[0]
    }

    #[test]
    fn every_way_multiplies_as_the_field_does() {
        for way in Way::ALL {
            assert_eq!(Way::named(way.name()), Some(way));
            for (a, b) in (0..=255).flat_map(|a| (0..=255).map(move |b| (a, b))) {
                assert_eq!(
                    product(way, a, b),
                    gf256::mul(a, b),
                    "{a} times {b}, {way:?}"
                );
            }
        }
    }

    #[test]
    fn sums_are_over_all_sources() {
        let (rows, sources) = ([[3, 0, 7], [1, 1, 200]], [[1, 2], [9, 0], [255, 4]]);
        for way in Way::ALL {
            let (mut first, mut second) = ([0; 2], [0; 2]);
            let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
            way.combine(
                rows.iter().map(|row| &row[..]),
                &sources,
                &mut [&mut first, &mut second],
            );
            let sum = |row: [u8; 3], at: usize| {
                (0..3).fold(0, |sum, i| sum ^ gf256::mul(row[i], sources[i][at]))
            };
            assert_eq!(
                [first, second],
                rows.map(|row| [sum(row, 0), sum(row, 1)]),
                "{way:?}"
            );
        }
    }

    /// The nine products that the slide with the full table shows: it is the field of 0x11D.
    #[test]
    fn the_table_is_that_of_the_slide() {
        let rows = (20..=22).map(|a| {
            (38..=40)
                .map(|b| product(Way::Full, a, b))
                .collect::<Vec<u8>>()
        });
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [[194, 214, 26], [228, 241, 50], [142, 152, 74]]
        );
    }

    #[test]
    fn tables_are_as_large_as_the_slide_says() {
        let tables = &*TABLES;
        assert_eq!(size_of_val(&tables.products[..]), 64 << 10);
        assert_eq!(
            size_of_val(&tables.left[..]) + size_of_val(&tables.right[..]),
            8 << 10
        );
        assert_eq!(size_of_val(&tables.log) + size_of_val(&tables.exp), 512);
    }

    /// Improvement 1 has no brackets on the slide, and C evaluates `+` before `>>` before `&`.
    #[test]
    fn improvement_1_needs_the_brackets_that_the_slide_lacks() {
        let sums = || (0..255_u16).flat_map(|a| (0..255).map(move |b| a + b));
        let as_meant = |sum: u16| (sum & 255) + (sum >> 8);
        let as_printed = |sum: u16| sum & ((255 + sum) >> 8);
        assert!(sums().all(|sum| as_meant(sum) % 255 == sum % 255));
        assert!(
            sums()
                .filter(|&sum| as_printed(sum) % 255 != sum % 255)
                .count()
                > 60_000
        );
    }
}
