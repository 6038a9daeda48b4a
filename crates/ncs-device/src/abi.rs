//! The numbers and structures that kernels and their host share. Numbers are read from
//! `kernels/nc_abi.h` of this crate when it is compiled; structures are repeated, and a test
//! compares their layouts.

// Public items, as in `cuda`: the GPU laboratory uses them.
#![allow(unreachable_pub, unnameable_types)]
#![cfg_attr(feature = "lab", allow(missing_docs, missing_debug_implementations))]
#![cfg_attr(not(feature = "lab"), allow(dead_code))]

pub(crate) const HEADER: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/nc_abi.h"));

/// Tasks that fit into the launch structure itself; more are passed by address.
pub const INLINE_TASKS: usize = define("NC_INLINE_TASKS") as usize;
/// Rows start at multiples of this many coefficients.
pub const ROW_ALIGN: usize = define("NC_ROW_ALIGN") as usize;

pub const ROWS_SEEDED: u32 = define("NC_ROWS_SEEDED");
pub const ROWS_EXPLICIT: u32 = define("NC_ROWS_EXPLICIT");
pub const ROWS_SOURCE: u32 = define("NC_ROWS_SOURCE");

/// The value of `#define name value` in the header.
///
/// # Panics
/// If the header has no such line. In a constant this stops the compilation.
pub const fn define(name: &str) -> u32 {
    let (text, name, start) = (HEADER.as_bytes(), name.as_bytes(), b"\n#define ");
    let mut at = 0;
    while at < text.len() {
        if begins(text, at, start)
            && begins(text, at + start.len(), name)
            && text[at + start.len() + name.len()] == b' '
        {
            return number(text, at + start.len() + name.len());
        }
        at += 1;
    }
    panic!("the header does not define it as a number");
}

const fn begins(text: &[u8], at: usize, with: &[u8]) -> bool {
    let mut i = 0;
    while i < with.len() {
        if at + i >= text.len() || text[at + i] != with[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Parses a decimal number that follows spaces.
const fn number(text: &[u8], mut at: usize) -> u32 {
    while text[at] == b' ' {
        at += 1;
    }
    assert!(
        text[at].is_ascii_digit(),
        "the header does not define it as a number"
    );
    let mut value = 0;
    while text[at].is_ascii_digit() {
        value = value * 10 + (text[at] - b'0') as u32;
        at += 1;
    }
    value
}

/// The form of a coefficient in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RowForm {
    /// The coefficient itself.
    Bytes = define("NC_ROW_BYTES"),
    /// Its logarithm, 255 for zero.
    Logs = define("NC_ROW_LOGS"),
    /// Its logarithm plus one, 0 for zero.
    Logs1 = define("NC_ROW_LOGS1"),
    /// Two bytes, in the form that the kernel `table` adds.
    Logs16 = define("NC_ROW_LOGS16"),
}

impl RowForm {
    /// Bytes of a coefficient in this form.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes | Self::Logs | Self::Logs1 => 1,
            Self::Logs16 => 2,
        }
    }
}

/// Some rows of one generation: `nc_task`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Task {
    pub source: u64,
    pub out: u64,
    pub coefficients: u64,
    pub given: u64,
    pub key: u64,
    pub generation: u64,
    pub first_seed: u32,
    pub kind: u32,
    pub rows: u32,
    pub out_pitch: u32,
    pub n: u32,
    pub k: u32,
    pub first_unit: u32,
    pub first_row: u32,
}

/// The argument of kernels that work on tasks: `nc_launch`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Launch {
    pub tasks: u64,
    pub count: u32,
    pub units: u32,
    pub rows: u32,
    pub row_form: u32,
    pub few: [Task; INLINE_TASKS],
}

/// A generation to convert into a form: `nc_form_task`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct FormTask {
    pub raw: u64,
    pub out: u64,
    pub raw_pitch: u32,
    pub raw_length: u32,
    pub n: u32,
    pub k: u32,
}

/// A matrix to invert: `nc_invert_task`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct InvertTask {
    pub matrix: u64,
    pub inverse: u64,
    pub status: u64,
    pub n: u32,
    pub pitch: u32,
}

/// Large matrices that the whole card inverts together: `nc_wide`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Wide {
    pub matrices: u64,
    pub inverses: u64,
    pub work: u64,
    pub factors: u64,
    pub pivots: u64,
    pub found: u64,
    pub order: u64,
    pub column_of: u64,
    pub status: u64,
    pub n: u32,
    pub pitch: u32,
    pub count: u32,
    pub first: u32,
    pub tiles: u32,
    pub reserved: u32,
}

/// Products of matrices: `nc_wide_product`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct WideProduct {
    pub left: u64,
    pub right: u64,
    pub out: u64,
    pub left_step: u64,
    pub right_step: u64,
    pub out_step: u64,
    pub rows: u32,
    pub inner: u32,
    pub columns: u32,
    pub left_pitch: u32,
    pub right_pitch: u32,
    pub out_pitch: u32,
    pub adds: u32,
    pub reserved: u32,
}

/// Sums of rows: `nc_wide_sums`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct WideSums {
    pub from: u64,
    pub out: u64,
    pub terms: u64,
    pub ends: u64,
    pub from_step: u64,
    pub out_step: u64,
    pub rows: u32,
    pub pitch: u32,
}

/// The field of 257 bits: `nc_gfq_field`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GfqField {
    pub q: [u32; 9],
    pub negated: u32,
    pub one: [u32; 9],
    pub square: [u32; 9],
    pub ratio_low: u32,
    pub ratio_high: u32,
}

/// A combination of rows of words: `nc_gfq_product`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GfqProduct {
    pub source: u64,
    pub coefficients: u64,
    pub out: u64,
    pub source_step: u64,
    pub coefficients_step: u64,
    pub out_step: u64,
    pub source_pitch: u32,
    pub coefficients_pitch: u32,
    pub out_pitch: u32,
    pub n: u32,
    pub rows: u32,
    pub words: u32,
    pub tops: u32,
    pub reserved: u32,
    pub field: GfqField,
}

/// Matrices over that field to invert: `nc_gfq_inversion`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GfqInversion {
    pub matrices: u64,
    pub inverses: u64,
    pub work: u64,
    pub status: u64,
    pub matrices_step: u64,
    pub inverses_step: u64,
    pub matrices_pitch: u32,
    pub inverses_pitch: u32,
    pub n: u32,
    pub first: u32,
    pub parts: u32,
    pub reserved: u32,
    pub field: GfqField,
}

/// A step of an elimination over that field: `nc_gfq_step`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct GfqStep {
    pub extended: u64,
    pub column: u64,
    pub n: u32,
    pub row: u32,
    pub other: u32,
    pub lead: u32,
    pub factor: [u32; 9],
    pub reserved: u32,
    pub field: GfqField,
}

/// The prime of a group of hashes: `nc_group`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Group {
    pub p: [u32; 64],
    pub one: [u32; 64],
    pub square: [u32; 64],
    pub negated: u32,
    pub reserved: u32,
}

/// Products of powers: `nc_hash`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Hash {
    pub bases: u64,
    pub table: u64,
    pub exponents: u64,
    pub parts: u64,
    pub out: u64,
    pub bases_step: u64,
    pub table_step: u64,
    pub exponents_pitch: u32,
    pub rows: u32,
    pub words: u32,
    pub tops: u32,
    pub window: u32,
    pub windows: u32,
    pub share: u32,
    pub items: u32,
    pub count: u32,
    pub enters: u32,
    pub group: Group,
}

/// Operations on pairs of multi-precision numbers: `nc_mp_operations`.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MpOperations {
    pub a: u64,
    pub b: u64,
    pub out: u64,
    pub count: u32,
    pub operation: u32,
    pub group: Group,
}

/// A generation that is decoded progressively, block by block: `nc_progress`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Progress {
    pub coefficients: u64,
    pub blocks: u64,
    pub vectors: u64,
    pub payload: u64,
    pub outcomes: u64,
    pub payload_pitch: u32,
    pub rows: u32,
    pub n: u32,
    pub k: u32,
    pub slice: u32,
    pub reserved: u32,
}

/// A combination of whole chunks: `nc_chunks`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Chunks {
    pub source: u64,
    pub out: u64,
    pub matrix: u64,
    pub source_pitch: u64,
    pub out_pitch: u64,
    pub bytes: u64,
    pub n: u32,
    pub rows: u32,
    pub tile_rows: u32,
    pub tile_columns: u32,
    pub groups: u32,
    pub reserved: u32,
}

/// Plans to replay on symbols: `nc_replay`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Replay {
    pub plans: u64,
    pub symbols: u64,
    pub outputs: u64,
    pub symbols_pitch: u64,
    pub outputs_pitch: u64,
    pub work: u64,
    pub blocks: u32,
    pub symbol_bytes: u32,
    pub slots: u32,
    pub reserved: u32,
}

/// The field's tables: `nc_tables`.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Tables {
    pub log: [u8; 256],
    pub exp: [u8; 512],
    pub product: [u8; 65_536],
    pub bits: [u64; 256],
    pub polynomial: u32,
    pub generator: u32,
    pub reserved: [u32; 2],
}

/// Structures without padding: every byte of them may be read. The test of their layouts checks
/// this.
pub trait Plain: Sized {}
impl Plain for Task {}
impl Plain for Launch {}
impl Plain for FormTask {}
impl Plain for InvertTask {}
impl Plain for Wide {}
impl Plain for WideProduct {}
impl Plain for WideSums {}
impl Plain for GfqProduct {}
impl Plain for GfqInversion {}
impl Plain for GfqStep {}
impl Plain for Hash {}
#[cfg(test)]
impl Plain for MpOperations {}
impl Plain for Progress {}
impl Plain for Chunks {}
impl Plain for Replay {}
impl Plain for Tables {}
impl Plain for u64 {}

/// A field of 256 elements, by its polynomial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Field {
    #[default]
    /// 0x11D with the generator 2: the field of the protocol.
    Standard,
    /// 0x11B with the generator 3, the field of Rijndael. One of the papers uses it; only
    /// measurements do.
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

    /// The product of two elements, computed from the definition.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a reduced polynomial has no x^8"
    )]
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
    /// All tables, computed from the definition of the product.
    #[expect(clippy::cast_possible_truncation, reason = "indices below 256")]
    pub fn of(field: Field) -> Box<Self> {
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
    use ncs_gf::gf256;
    use std::mem::{offset_of, size_of};

    #[test]
    fn numbers_are_read_from_the_header() {
        assert_eq!(
            (ROW_ALIGN, INLINE_TASKS, RowForm::Logs16 as u32),
            (16, 8, 3)
        );
        assert!(
            std::panic::catch_unwind(|| define("NC_ROW")).is_err(),
            "the beginning of a name is not the name"
        );
        assert!(std::panic::catch_unwind(|| define("NC_INVERT_PITCH(n)")).is_err());
    }

    /// Fields of a structure in the header with their offsets. Applies C's rules for types whose
    /// alignment is their size.
    fn layout(name: &str) -> (Vec<(&'static str, usize)>, usize) {
        let body = HEADER
            .split(&format!("typedef struct {name} {{"))
            .nth(1)
            .expect("the structure is there");
        let body = body.split(&format!("}} {name};")).next().expect("it ends");
        let (mut fields, mut end, mut widest) = (Vec::new(), 0_usize, 1);
        for line in body.lines() {
            let Some((declaration, _)) = line.split_once(';') else {
                continue;
            };
            let (kind, field) = declaration
                .trim()
                .split_once(' ')
                .expect("a type and a name");
            let (size, align) = match kind {
                "nc_u8" => (1, 1),
                "nc_u32" => (4, 4),
                "nc_u64" => (8, 8),
                "nc_task" => (size_of::<Task>(), 8),
                "nc_gfq_field" => (size_of::<GfqField>(), 4),
                "nc_group" => (size_of::<Group>(), 4),
                other => panic!("{other} is unknown"),
            };
            let (field, count) = match field.split_once('[') {
                Some((field, "NC_INLINE_TASKS]")) => (field, INLINE_TASKS),
                Some((field, count)) => (
                    field,
                    count.trim_end_matches(']').parse().expect("a number"),
                ),
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
        same_layout!(
            "nc_launch",
            Launch {
                tasks,
                count,
                units,
                rows,
                row_form,
                few
            }
        );
        same_layout!(
            "nc_form_task",
            FormTask {
                raw,
                out,
                raw_pitch,
                raw_length,
                n,
                k
            }
        );
        same_layout!(
            "nc_invert_task",
            InvertTask {
                matrix,
                inverse,
                status,
                n,
                pitch
            }
        );
        same_layout!(
            "nc_wide",
            Wide {
                matrices,
                inverses,
                work,
                factors,
                pivots,
                found,
                order,
                column_of,
                status,
                n,
                pitch,
                count,
                first,
                tiles,
                reserved
            }
        );
        same_layout!(
            "nc_wide_product",
            WideProduct {
                left,
                right,
                out,
                left_step,
                right_step,
                out_step,
                rows,
                inner,
                columns,
                left_pitch,
                right_pitch,
                out_pitch,
                adds,
                reserved
            }
        );
        same_layout!(
            "nc_wide_sums",
            WideSums {
                from,
                out,
                terms,
                ends,
                from_step,
                out_step,
                rows,
                pitch
            }
        );
        same_layout!(
            "nc_gfq_field",
            GfqField {
                q,
                negated,
                one,
                square,
                ratio_low,
                ratio_high
            }
        );
        same_layout!(
            "nc_gfq_product",
            GfqProduct {
                source,
                coefficients,
                out,
                source_step,
                coefficients_step,
                out_step,
                source_pitch,
                coefficients_pitch,
                out_pitch,
                n,
                rows,
                words,
                tops,
                reserved,
                field
            }
        );
        same_layout!(
            "nc_gfq_inversion",
            GfqInversion {
                matrices,
                inverses,
                work,
                status,
                matrices_step,
                inverses_step,
                matrices_pitch,
                inverses_pitch,
                n,
                first,
                parts,
                reserved,
                field
            }
        );
        same_layout!(
            "nc_gfq_step",
            GfqStep {
                extended,
                column,
                n,
                row,
                other,
                lead,
                factor,
                reserved,
                field
            }
        );
        same_layout!(
            "nc_group",
            Group {
                p,
                one,
                square,
                negated,
                reserved
            }
        );
        same_layout!(
            "nc_hash",
            Hash {
                bases,
                table,
                exponents,
                parts,
                out,
                bases_step,
                table_step,
                exponents_pitch,
                rows,
                words,
                tops,
                window,
                windows,
                share,
                items,
                count,
                enters,
                group
            }
        );
        same_layout!(
            "nc_mp_operations",
            MpOperations {
                a,
                b,
                out,
                count,
                operation,
                group
            }
        );
        same_layout!(
            "nc_progress",
            Progress {
                coefficients,
                blocks,
                vectors,
                payload,
                outcomes,
                payload_pitch,
                rows,
                n,
                k,
                slice,
                reserved
            }
        );
        same_layout!(
            "nc_chunks",
            Chunks {
                source,
                out,
                matrix,
                source_pitch,
                out_pitch,
                bytes,
                n,
                rows,
                tile_rows,
                tile_columns,
                groups,
                reserved
            }
        );
        same_layout!(
            "nc_replay",
            Replay {
                plans,
                symbols,
                outputs,
                symbols_pitch,
                outputs_pitch,
                work,
                blocks,
                symbol_bytes,
                slots,
                reserved
            }
        );
        same_layout!(
            "nc_tables",
            Tables {
                log,
                exp,
                product,
                bits,
                polynomial,
                generator,
                reserved
            }
        );
    }

    #[test]
    fn tables_are_those_of_the_field() {
        let tables = Tables::of(Field::Standard);
        assert_eq!(tables.log, gf256::LOG);
        assert_eq!(tables.exp[..510], gf256::EXP[..510]);
        for (index, &product) in tables.product.iter().enumerate() {
            assert_eq!(
                product,
                gf256::mul(
                    u8::try_from(index >> 8).unwrap(),
                    u8::try_from(index & 255).unwrap()
                )
            );
        }
        // In GFNI matrices the row of bit i is byte 7 - i.
        assert!(
            tables
                .bits
                .iter()
                .zip(&gf256::AFFINE_MATRICES)
                .all(|(bits, matrix)| bits.swap_bytes() == *matrix)
        );
        let rijndael = Tables::of(Field::Rijndael);
        assert_eq!(
            Field::Rijndael.mul(0x53, 0xCA),
            1,
            "the example of FIPS 197"
        );
        assert_eq!((rijndael.exp[255], rijndael.log[3]), (1, 1));
    }
}
