//! The command line of `nccodec`.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use nccodec::{Amount, Choice, ChunkPlan, Code, Construction, Fountain, Plan, Raw};
use ncs_codec::shape::Shape;
use ncs_device::BackendChoice;
use ncs_gf::RowKey;

/// Codes files without a network: into blocks, symbols or chunks from which they can be rebuilt
/// when some are lost.
#[derive(Debug, Parser)]
#[command(name = "nccodec", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log more: -v logs debug messages of nccodec, -vv those of its libraries too
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print one coefficient vector in hexadecimal
    Row(Row),
    /// Encode a file: into raw coded blocks with --key, otherwise into a directory of
    /// self-describing block files; into symbols with --codec raptorq or raptor10, into chunks with
    /// --codec rs
    Encode(Encode),
    /// Decode a file from a directory of block files or chunk files, and verify it
    Decode(Decode),
}

#[derive(Debug, Args)]
pub(crate) struct Row {
    /// Key of the segment, such as 0x0123456789abcdef
    #[arg(long, value_parser = parse_integer)]
    pub(crate) key: u64,
    /// Index of the generation
    #[arg(long, value_parser = parse_integer)]
    pub(crate) generation: u64,
    /// Seed of the coefficient vector
    #[arg(long)]
    pub(crate) seed: u32,
    /// Blocks in the generation, which is the number of coefficients
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) n: u16,
}

#[derive(Debug, Args)]
pub(crate) struct Encode {
    /// File to encode, - for standard input
    pub(crate) file: PathBuf,
    /// Code to use
    #[arg(long, value_enum, default_value_t = Codec::Rlnc)]
    pub(crate) codec: Codec,
    /// Bytes per block or symbol, by default 4096. With --codec rs: native chunks, by default 4;
    /// any k chunks rebuild the file
    #[arg(long)]
    pub(crate) k: Option<u32>,
    /// Blocks in the generation, up to 1024; by default as many as the file needs. For block files:
    /// blocks per generation at most, by default 128. With --codec raptorq: source symbols per
    /// source block at most, by default 56403; with raptor10 8192. With --codec rs: chunks in
    /// total, up to 256, by default 6
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) n: Option<u16>,
    /// Generator matrix of the code chunks, by default cauchy: cauchy, as ISA-L
    /// (gf_gen_cauchy1_matrix); vand-bb, as Backblaze and reed-solomon-erasure; vand-jerasure, as
    /// Jerasure (reed_sol_van); isal-rs, as ISA-L (gf_gen_rs_matrix). Or leopard, no matrix but a
    /// fast Fourier transform, as reed-solomon-simd: faster with many chunks, on the CPU alone
    #[arg(long)]
    pub(crate) matrix: Option<Construction>,
    /// Bytes of each chunk in a stripe, by default 262144. Each stripe is checked and rebuilt on
    /// its own
    #[arg(long, value_name = "BYTES")]
    pub(crate) piece: Option<u32>,
    /// Key of the coefficient vectors; writes concatenated raw blocks
    #[arg(long, value_parser = parse_integer)]
    pub(crate) key: Option<u64>,
    /// Index of the generation, by default 0
    #[arg(long, requires = "key", value_parser = parse_integer)]
    pub(crate) generation: Option<u64>,
    /// Seed of the first block; later blocks count up and wrap. By default 0 for raw blocks and
    /// random for block files
    #[arg(long)]
    pub(crate) seed: Option<u32>,
    /// Id of the first encoding symbol, by default 0. Source symbols have the lowest ids, and
    /// repair symbols follow them
    #[arg(long, value_name = "ID")]
    pub(crate) esi: Option<u32>,
    /// Number of coded blocks or symbols to write, by default 1. For block files: per generation,
    /// by default one eighth more than its source blocks
    #[arg(long)]
    pub(crate) count: Option<u32>,
    /// Number of block files per generation beyond its source blocks, or per source block beyond
    /// its source symbols
    #[arg(long, value_name = "BLOCKS", conflicts_with_all = ["count", "key"])]
    pub(crate) extra: Option<u32>,
    /// File for raw blocks (- for standard output), or directory for block files. For chunks:
    /// directory, by default FILE.chunks
    #[arg(long, short)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) coders: Coders,
}

/// Back ends that encode or decode.
#[derive(Debug, Args)]
pub(crate) struct Coders {
    /// Back end: the CPU, a GPU, or hybrid, where both take the next work item as soon as they are
    /// free. auto uses a GPU if one works
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Number of the GPU in the driver's order, by default 0
    #[arg(long, value_name = "NUMBER")]
    gpu: Option<u16>,
}

/// As in the configuration of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    Auto,
    Cpu,
    Cuda,
    Hybrid,
}

impl Coders {
    /// Who is meant, unless a GPU is named and none is to take part.
    pub(crate) fn choice(&self) -> Result<Choice, clap::Error> {
        let backend = match self.backend {
            Backend::Auto => BackendChoice::Auto,
            Backend::Cpu => BackendChoice::Cpu,
            Backend::Cuda => BackendChoice::Cuda,
            Backend::Hybrid => BackendChoice::Hybrid,
        };
        if self.gpu.is_some() && self.backend == Backend::Cpu {
            let text = "--gpu selects a GPU and needs --backend auto, cuda or hybrid";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(Choice {
            backend,
            gpu: self.gpu.unwrap_or(0),
        })
    }
}

/// What a file can be made into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Codec {
    /// Random linear network coding over GF(2^8)/0x11D: blocks
    Rlnc,
    /// Reed-Solomon: k native and n - k code chunks; any k of them rebuild the file
    Rs,
    /// RaptorQ (RFC 6330): source and repair symbols, as blocks
    #[value(name = "raptorq")]
    RaptorQ,
    /// Raptor10 (RFC 5053): source and repair symbols, as blocks
    Raptor10,
}

/// What `encode` is to write.
#[derive(Debug)]
pub(crate) enum Coding {
    /// Payloads into a file.
    Raw(Raw, PathBuf),
    /// Block files into a directory.
    Blocks(Plan, PathBuf),
    /// Chunk files into a directory, or beside the file.
    Chunks(ChunkPlan, Option<PathBuf>),
}

impl Encode {
    /// What is meant, or which options do not go with each other.
    pub(crate) fn coding(&self) -> Result<Coding, clap::Error> {
        let usage = |kind, text: &str| Cli::command().error(kind, text);
        if self.codec == Codec::Rs {
            let numbers = [self.seed, self.esi, self.count, self.extra];
            if self.key.is_some()
                || self.generation.is_some()
                || numbers.iter().any(Option::is_some)
            {
                let text = "--key, --generation, --seed, --esi, --count and --extra are for \
                            blocks, not for --codec rs";
                return Err(usage(ErrorKind::ArgumentConflict, text));
            }
            let Ok(k) = u16::try_from(self.k.unwrap_or(4)) else {
                return Err(usage(
                    ErrorKind::ValueValidation,
                    "--codec rs takes at most 255 native chunks (--k)",
                ));
            };
            return Ok(Coding::Chunks(self.chunks(k), self.output.clone()));
        }
        if self.matrix.is_some() || self.piece.is_some() {
            return Err(usage(
                ErrorKind::ArgumentConflict,
                "--matrix and --piece are for chunks: they need --codec rs",
            ));
        }
        let Some(output) = self.output.clone() else {
            return Err(usage(
                ErrorKind::MissingRequiredArgument,
                "blocks need an output file or directory: --output <OUTPUT>",
            ));
        };
        let Some(fountain) = self.fountain() else {
            if self.esi.is_some() {
                return Err(usage(
                    ErrorKind::ArgumentConflict,
                    "--esi is for encoding symbols: it needs --codec raptorq or raptor10",
                ));
            }
            if self.n.is_some_and(|n| n > Shape::N_LIMIT) {
                return Err(usage(
                    ErrorKind::ValueValidation,
                    "a generation has at most 1024 blocks (--n)",
                ));
            }
            if self.key.is_some() && self.coders.backend != Backend::Cpu {
                return Err(usage(
                    ErrorKind::ArgumentConflict,
                    "only the CPU makes raw blocks: --backend is for block files and chunks",
                ));
            }
            let raw = self.raw().map(|raw| Coding::Raw(raw, output.clone()));
            return Ok(raw.unwrap_or_else(|| Coding::Blocks(self.plan(), output)));
        };
        if self.key.is_some() || self.seed.is_some() {
            let text = "--key and --seed are for random linear blocks: symbols have ids (--esi)";
            return Err(usage(ErrorKind::ArgumentConflict, text));
        }
        let (n_max, first) = (
            self.n.unwrap_or_else(|| fountain.n_limit()),
            self.esi.unwrap_or(0),
        );
        Ok(Coding::Blocks(
            Plan {
                code: Code::Fountain(fountain),
                n_max,
                first,
                ..self.plan()
            },
            output,
        ))
    }

    /// The code whose symbols are meant, if symbols are.
    fn fountain(&self) -> Option<Fountain> {
        match self.codec {
            Codec::Rlnc | Codec::Rs => None,
            Codec::RaptorQ => Some(Fountain::RaptorQ),
            Codec::Raptor10 => Some(Fountain::Raptor10),
        }
    }

    /// What chunks are meant. What there cannot be is refused where codes are made.
    fn chunks(&self, k: u16) -> ChunkPlan {
        let (matrix, piece_bytes) = (
            self.matrix.unwrap_or_default(),
            self.piece.unwrap_or(ChunkPlan::PIECE_BYTES),
        );
        ChunkPlan {
            matrix,
            k,
            n: self.n.unwrap_or(6),
            piece_bytes,
            set: rand::random(),
        }
    }

    /// Which raw blocks are meant, if raw ones are.
    fn raw(&self) -> Option<Raw> {
        let key = RowKey {
            key: self.key?,
            generation: self.generation.unwrap_or(0),
        };
        let (first_seed, count) = (self.seed.unwrap_or(0), self.count.unwrap_or(1));
        Some(Raw {
            key,
            first_seed,
            count,
            n: self.n,
            block_bytes: self.block_bytes(),
        })
    }

    fn block_bytes(&self) -> u32 {
        self.k.unwrap_or(4096)
    }

    /// What block files are meant. Seeds start anywhere, so that a second run makes other blocks.
    fn plan(&self) -> Plan {
        let amount = match (self.count, self.extra) {
            (Some(count), _) => Amount::Count(count),
            (None, Some(extra)) => Amount::Extra(extra),
            (None, None) => Amount::Auto,
        };
        Plan {
            code: Code::Rlnc,
            block_bytes: self.block_bytes(),
            n_max: self.n.unwrap_or(128),
            first: self.seed.unwrap_or_else(rand::random),
            amount,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// Directory with block files or chunk files
    pub(crate) directory: PathBuf,
    /// File to write, - for standard output
    #[arg(long, short)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) coders: Coders,
}

fn parse_integer(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

const AFTER_HELP: &str = "\
Examples:
  nccodec encode film.mp4 -o blocks/                     an eighth more blocks than needed
  nccodec encode --codec rs --k 4 --n 6 film.mp4         six chunks, any four of which rebuild it
  nccodec decode blocks/ -o again.mp4                    rebuilds and verifies the file

Exit codes: 0 done, 1 failed while running, 2 wrong usage, 5 no device,
7 result incomplete or wrong, 141 the output pipe was closed.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn odd_values_are_refused() {
        for arguments in [
            &[
                "row",
                "--key",
                "0xg",
                "--generation",
                "1",
                "--seed",
                "1",
                "--n",
                "1",
            ][..],
            &[
                "row",
                "--key",
                "1",
                "--generation",
                "1",
                "--seed",
                "1",
                "--n",
                "0",
            ],
        ] {
            assert!(
                Cli::try_parse_from(["nccodec"].iter().chain(arguments)).is_err(),
                "{arguments:?}"
            );
        }
    }
}
