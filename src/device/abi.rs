//! What kernels and their host share, as `kernels/nc_abi.h` has it. A test reads that file and compares names, numbers and layouts.

/// The same in both files, or the compiled kernels are not those of this source.
pub(super) const VERSION: u32 = 1;
/// Tasks that travel with the launch itself.
pub(super) const INLINE_TASKS: usize = 8;
/// Rows start at multiples of this, in coefficients.
pub(super) const ROW_ALIGN: usize = 16;

pub(super) const ROWS_SEEDED: u32 = 0;
pub(super) const ROWS_EXPLICIT: u32 = 1;
pub(super) const ROWS_SOURCE: u32 = 2;

/// How a coefficient is kept in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum RowForm {
    /// The coefficient.
    Bytes = 0,
    /// Its logarithm, 255 for zero.
    Logs = 1,
    /// Its logarithm plus one, 0 for zero.
    Logs1 = 2,
    /// Two bytes, as the kernel `table` adds them.
    Logs16 = 3,
}

impl RowForm {
    /// Bytes of one coefficient.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Bytes | Self::Logs | Self::Logs1 => 1,
            Self::Logs16 => 2,
        }
    }
}

/// Some rows of one generation: `nc_task`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Task {
    pub(super) source: u64,
    pub(super) out: u64,
    pub(super) coefficients: u64,
    pub(super) given: u64,
    pub(super) key: u64,
    pub(super) generation: u64,
    pub(super) first_seed: u32,
    pub(super) kind: u32,
    pub(super) rows: u32,
    pub(super) out_pitch: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) first_unit: u32,
    pub(super) first_row: u32,
}

/// What kernels over tasks are launched with: `nc_launch`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Launch {
    pub(super) tasks: u64,
    pub(super) count: u32,
    pub(super) units: u32,
    pub(super) rows: u32,
    pub(super) row_form: u32,
    pub(super) few: [Task; INLINE_TASKS],
}

/// One generation to be put into a form: `nc_form_task`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct FormTask {
    pub(super) raw: u64,
    pub(super) out: u64,
    pub(super) raw_pitch: u32,
    pub(super) raw_length: u32,
    pub(super) n: u32,
    pub(super) k: u32,
}

/// One matrix to be inverted: `nc_invert_task`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct InvertTask {
    pub(super) matrix: u64,
    pub(super) inverse: u64,
    pub(super) status: u64,
    pub(super) n: u32,
    pub(super) pitch: u32,
}

/// A generation that is decoded block by block: `nc_progress`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Progress {
    pub(super) coefficients: u64,
    pub(super) blocks: u64,
    pub(super) vectors: u64,
    pub(super) payload: u64,
    pub(super) outcomes: u64,
    pub(super) payload_pitch: u32,
    pub(super) rows: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) slice: u32,
    pub(super) reserved: u32,
}

/// The field as data: `nc_tables`.
#[derive(Debug, Clone)]
#[repr(C)]
pub(super) struct Tables {
    pub(super) log: [u8; 256],
    pub(super) exp: [u8; 512],
    pub(super) product: [u8; 65_536],
    pub(super) bits: [u64; 256],
    pub(super) polynomial: u32,
    pub(super) generator: u32,
    pub(super) reserved: [u32; 2],
}

/// Structures without padding, so that every byte of them may be read. The test of their layouts shows it.
pub(super) trait Plain: Sized {}
impl Plain for Task {}
impl Plain for Launch {}
impl Plain for FormTask {}
impl Plain for InvertTask {}
impl Plain for Progress {}
impl Plain for Tables {}
impl Plain for u64 {}

/// A field of 256 elements, by its polynomial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Field {
    #[default]
    /// 0x11D with the generator 2: what travels.
    Standard,
    /// 0x11B with the generator 3, Rijndael's, in which one of the papers measures. In measurements alone.
    Rijndael,
}

impl Field {
    const fn polynomial(self) -> u16 {
        match self {
            Self::Standard => 0x11D,
            Self::Rijndael => 0x11B,
        }
    }

    const fn generator(self) -> u8 {
        match self {
            Self::Standard => 2,
            Self::Rijndael => 3,
        }
    }

    /// The product of two elements, from the definition.
    #[expect(clippy::cast_possible_truncation, reason = "a reduced polynomial has no x^8")]
    pub fn mul(self, a: u8, b: u8) -> u8 {
        let (mut a, mut b, mut product) = (u16::from(a), b, 0);
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a <<= 1;
            if a & 0x100 != 0 {
                a ^= self.polynomial();
            }
            b >>= 1;
        }
        product as u8
    }
}

impl Tables {
    /// Everything computed from the definition of the product.
    #[expect(clippy::cast_possible_truncation, reason = "indices below 256")]
    pub(super) fn of(field: Field) -> Box<Self> {
        let mut tables = Box::new(Self {
            log: [255; 256],
            exp: [0; 512],
            product: [0; 65_536],
            bits: [0; 256],
            polynomial: field.polynomial().into(),
            generator: field.generator().into(),
            reserved: [0; 2],
        });
        let mut power = 1;
        for i in 0..510 {
            tables.exp[i] = power;
            if i < 255 {
                tables.log[usize::from(power)] = i as u8;
            }
            power = field.mul(power, field.generator());
        }
        for (index, product) in tables.product.iter_mut().enumerate() {
            *product = field.mul((index >> 8) as u8, index as u8);
        }
        for (c, bits) in tables.bits.iter_mut().enumerate() {
            for column in 0..8 {
                let product = field.mul(c as u8, 1 << column);
                for bit in 0..8 {
                    *bits |= u64::from((product >> bit) & 1) << (8 * bit + column);
                }
            }
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf::gf256;
    use std::collections::HashMap;
    use std::mem::{offset_of, size_of};

    const HEADER: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/nc_abi.h"));

    /// The numbers that the header defines.
    pub(in crate::device) fn defines() -> HashMap<&'static str, u64> {
        let defines = HEADER.lines().filter_map(|line| line.strip_prefix("#define "));
        let numbers = defines.filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, value) = (words.next()?, words.next()?.trim_end_matches('u'));
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok()?,
                None => value.parse().ok()?,
            };
            Some((name, value))
        });
        numbers.collect()
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        let defines = defines();
        let numbers = [
            ("NC_ABI_VERSION", u64::from(VERSION)),
            ("NC_INLINE_TASKS", INLINE_TASKS as u64),
            ("NC_ROW_ALIGN", ROW_ALIGN as u64),
            ("NC_ROWS_SEEDED", ROWS_SEEDED.into()),
            ("NC_ROWS_EXPLICIT", ROWS_EXPLICIT.into()),
            ("NC_ROWS_SOURCE", ROWS_SOURCE.into()),
            ("NC_ROW_BYTES", RowForm::Bytes as u64),
            ("NC_ROW_LOGS", RowForm::Logs as u64),
            ("NC_ROW_LOGS1", RowForm::Logs1 as u64),
            ("NC_ROW_LOGS16", RowForm::Logs16 as u64),
        ];
        for (name, value) in numbers {
            assert_eq!(defines.get(name), Some(&value), "{name}");
        }
    }

    /// Fields of a structure of the header with their offsets, by the rules of C for types that are as large as they are aligned.
    fn layout(name: &str) -> (Vec<(&'static str, usize)>, usize) {
        let body = HEADER.split(&format!("typedef struct {name} {{")).nth(1).expect("the structure is there");
        let body = body.split(&format!("}} {name};")).next().expect("it ends");
        let (mut fields, mut end, mut widest) = (Vec::new(), 0_usize, 1);
        for line in body.lines() {
            let Some((declaration, _)) = line.split_once(';') else { continue };
            let (kind, field) = declaration.trim().split_once(' ').expect("a type and a name");
            let (size, align) = match kind {
                "nc_u8" => (1, 1),
                "nc_u32" => (4, 4),
                "nc_u64" => (8, 8),
                "nc_task" => (size_of::<Task>(), 8),
                other => panic!("{other} is unknown"),
            };
            let (field, count) = match field.split_once('[') {
                Some((field, "NC_INLINE_TASKS]")) => (field, INLINE_TASKS),
                Some((field, count)) => (field, count.trim_end_matches(']').parse().expect("a number")),
                None => (field, 1),
            };
            let offset = end.next_multiple_of(align);
            fields.push((field, offset));
            end = offset + size * count;
            widest = widest.max(align);
        }
        (fields, end.next_multiple_of(widest))
    }

    macro_rules! same_layout {
        ($name:literal, $type:ident { $($field:ident),* }) => {
            let (fields, size) = layout($name);
            let ours = [$((stringify!($field), offset_of!($type, $field))),*];
            assert_eq!(fields, ours, $name);
            assert_eq!(size, size_of::<$type>(), $name);
        };
    }

    #[test]
    fn structures_are_those_of_the_header() {
        same_layout!(
            "nc_task",
            Task {
                source,
                out,
                coefficients,
                given,
                key,
                generation,
                first_seed,
                kind,
                rows,
                out_pitch,
                n,
                k,
                first_unit,
                first_row
            }
        );
        same_layout!("nc_launch", Launch { tasks, count, units, rows, row_form, few });
        same_layout!("nc_form_task", FormTask { raw, out, raw_pitch, raw_length, n, k });
        same_layout!("nc_invert_task", InvertTask { matrix, inverse, status, n, pitch });
        same_layout!(
            "nc_progress",
            Progress { coefficients, blocks, vectors, payload, outcomes, payload_pitch, rows, n, k, slice, reserved }
        );
        same_layout!("nc_tables", Tables { log, exp, product, bits, polynomial, generator, reserved });
    }

    #[test]
    fn tables_are_those_of_the_field() {
        let tables = Tables::of(Field::Standard);
        assert_eq!(tables.log, gf256::LOG);
        assert_eq!(tables.exp[..510], gf256::EXP[..510]);
        for (index, &product) in tables.product.iter().enumerate() {
            assert_eq!(product, gf256::mul(u8::try_from(index >> 8).unwrap(), u8::try_from(index & 255).unwrap()));
        }
        // In the matrices of GFNI, the row of bit i is byte 7 - i.
        assert!(tables.bits.iter().zip(&gf256::AFFINE_MATRICES).all(|(bits, matrix)| bits.swap_bytes() == *matrix));
        let rijndael = Tables::of(Field::Rijndael);
        assert_eq!(Field::Rijndael.mul(0x53, 0xCA), 1, "the example of FIPS 197");
        assert_eq!((rijndael.exp[255], rijndael.log[3]), (1, 1));
    }
}
