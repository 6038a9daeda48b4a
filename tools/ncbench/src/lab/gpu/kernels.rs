//! The papers' kernels, and variants of them that leave out or replace one thing. Only measurements
//! launch them. They are compiled files of `tools/kernels`.

use ncserverd::device::abi::{RowForm, define};
use ncserverd::device::cuda::image::{Aligned, Compiled, Image};
use ncserverd::device::cuda::kernels::{Combine, Demand, Form, Variant};

macro_rules! images {
    ($($name:ident = $file:literal,)*) => {
        $(pub(super) const $name: Image = {
            static COMPILED: Compiled = Compiled {
                name: $file,
                bytes: &Aligned(*include_bytes!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../kernels/bin/",
                    $file,
                    ".fatbin"
                ))),
            };
            Image::Other(&COMPILED)
        };)*

        /// The compiled files with their sources.
        #[cfg(test)]
        const SOURCES: &[(Image, &str, &str)] = &[$((
            $name,
            concat!($file, ".cu"),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/", $file, ".cu")),
        )),*];
    };
}

images! {
    DECODE = "decode",
    HOLD = "hold",
    INVERT_STEPS = "invert_steps",
    LADDER = "ladder",
    THESIS = "thesis",
    TILED = "tiled",
}

/// Kernels that combine and that no back end has.
pub(super) const COMBINES: &[Combine] = &[
    Combine::new("loop", LADDER, |_| Some(s2_block("nc_loop"))),
    Combine::new("product-global", TILED, |_| Some(s1("nc_product_global"))),
    Combine::new("product-ldg", TILED, |_| Some(s1("nc_product_ldg"))),
    Combine::new("product-texture", TILED, |_| Some(s1("nc_product_texture"))),
    Combine::new("logexp-ldg", TILED, |_| Some(s1("nc_logexp_ldg"))),
    Combine::new("logexp-texture", TILED, |_| Some(s1("nc_logexp_texture"))),
    Combine::new("single", TILED, |_| Some(SINGLE)),
    Combine::new("tiled", TILED, |_| Some(tiled("nc_tiled"))),
    Combine::new("table0-global", LADDER, |_| {
        Some(s2_block("nc_table0_global"))
    }),
    Combine::new("table0", LADDER, |_| Some(s2_block("nc_table0"))),
    logs("table1", Form::Logs, RowForm::Logs, |_| {
        Some(s2("nc_table1"))
    }),
    logs("table2", Form::Logs, RowForm::Logs, |_| {
        Some(s2("nc_table2"))
    }),
    logs("table3", Form::Logs1, RowForm::Logs1, |_| {
        Some(s2("nc_table3"))
    }),
    logs("table4", Form::Logs1, RowForm::Logs1, |_| {
        Some(s2("nc_table4"))
    }),
    logs("table4-texture", Form::Logs1, RowForm::Logs1, |_| {
        Some(s2("nc_table4_texture"))
    }),
    logs("table5", Form::Logs1, RowForm::Logs1, |_| {
        Some(s2("nc_table5"))
    }),
    logs("table5-32", Form::Logs1, RowForm::Logs1, |demand| {
        demand.grant(TABLE5_WIDE)
    }),
    Combine::new("tiled-global", TILED, |_| Some(tiled("nc_tiled_global"))),
    Combine::new("tiled-strided", TILED, |_| Some(tiled("nc_tiled_strided"))),
    Combine::new("tiled-rolled", TILED, |_| Some(tiled("nc_tiled_rolled"))),
    Combine::new("tiled-small", TILED, |_| Some(SMALL)),
    Combine::new("tiled-bytes", TILED, |_| Some(BYTES)),
    Combine {
        form: Form::Logs1,
        row_form: RowForm::Logs1,
        ..Combine::new("tiled-logs", TILED, |_| Some(tiled("nc_tiled_logs")))
    },
    logs("table5-dummy", Form::Logs1, RowForm::Logs1, |_| {
        Some(s2("nc_table5_dummy"))
    }),
];

/// A kernel of the second paper over logarithms.
const fn logs(
    name: &'static str,
    form: Form,
    row_form: RowForm,
    variant: fn(&Demand) -> Option<Variant>,
) -> Combine {
    Combine {
        form,
        row_form,
        ..Combine::new(name, LADDER, variant)
    }
}

const fn s1(entry: &'static str) -> Variant {
    let unit = (define("NC_S1_ROWS"), define("NC_S1_BYTES"));
    Variant::new(entry, unit, define("NC_S1_THREADS"), 8)
}

const fn tiled(entry: &'static str) -> Variant {
    let unit = (define("NC_TILED_ROWS"), define("NC_TILED_BYTES"));
    Variant::new(entry, unit, define("NC_TILED_THREADS"), 8)
}

const fn s2_block(entry: &'static str) -> Variant {
    let unit = (define("NC_S2_BLOCK_ROWS"), define("NC_S2_BLOCK_BYTES"));
    Variant::new(entry, unit, define("NC_S2_BLOCK_THREADS"), 8)
}

const fn s2(entry: &'static str) -> Variant {
    let unit = (define("NC_S2_ROWS"), define("NC_S2_BYTES"));
    Variant {
        units_per_block: define("NC_S2_UNITS"),
        ..Variant::new(entry, unit, define("NC_S2_THREADS"), 8)
    }
}

const SINGLE: Variant = {
    let unit = (define("NC_SINGLE_ROWS"), define("NC_SINGLE_BYTES"));
    Variant::new("nc_single", unit, define("NC_SINGLE_THREADS"), 32)
};

const TABLE5_WIDE: Variant = Variant {
    shared_bytes: define("NC_TABLE5_32_SHARED"),
    units_per_block: define("NC_TABLE5_32_UNITS"),
    threads: define("NC_TABLE5_32_THREADS"),
    blocks_per_sm: 2,
    ..s2("nc_table5_32")
};

const SMALL: Variant = {
    let unit = (
        define("NC_TILED_SMALL_ROWS"),
        define("NC_TILED_SMALL_BYTES"),
    );
    Variant::new("nc_tiled_small", unit, define("NC_TILED_SMALL_THREADS"), 32)
};

const BYTES: Variant = {
    let unit = (
        define("NC_TILED_BYTES_ROWS"),
        define("NC_TILED_BYTES_BYTES"),
    );
    Variant::new("nc_tiled_bytes", unit, define("NC_TILED_BYTES_THREADS"), 8)
};

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! header {
        ($file:literal) => {
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../kernels/",
                $file
            ))
        };
    }

    /// Needs no compiler: the embedded files were made from the sources in the tree.
    /// `kernels/build.py --check` compiles them.
    #[test]
    fn images_were_compiled_from_these_sources() {
        let known = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../kernels/bin/SOURCES"
        ));
        for (image, name, source) in SOURCES {
            let headers = [
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../../crates/ncs-device/kernels/nc_abi.h"
                )),
                header!("nc_common.cuh"),
                header!("nc_bits.cuh"),
                header!("nc_carry.cuh"),
                header!("nc_mp.cuh"),
            ];
            let text = headers.concat() + source;
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            let digest: String = digest
                .as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let line = known
                .lines()
                .find(|line| line.ends_with(&format!(" {name}")));
            assert_eq!(
                line,
                Some(format!("{digest} {name}").as_str()),
                "run kernels/build.py and commit what it makes"
            );
            assert!(image.bytes().len() > 1000);
        }
    }

    #[test]
    fn names_differ_from_each_other_and_from_those_of_back_ends() {
        let all = ncserverd::device::cuda::kernels::COMBINES
            .iter()
            .chain(COMBINES);
        let names: Vec<&str> = all.map(|combine| combine.kernel).collect();
        let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }
}
