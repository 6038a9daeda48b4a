//! The command line of `ncbench`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueEnum};
use ncbench::{bench, swarm};
use ncs_gf::Isa;
use ncserverd::device::{Field, Threads};
use ncserverd::endpoint::Congestion;
use ncserverd::peer::{Config, Server, TokenSource};
use ncserverd::tls::{ClientPair, Fingerprint, Trust};

/// Measures ncserverd: its arithmetic case by case, the papers' figures, and servers under load.
/// Every result of the arithmetic is verified before it is measured.
#[derive(Debug, Parser)]
#[command(name = "ncbench", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure encoding, recoding, decoding and what they are made of on the CPU
    Cases(Cases),
    /// Measure encode, decode, recode and invert for all n and k with every instruction set, on one
    /// core and on all; takes minutes
    Cpu(Cases),
    /// Measure the papers' figures, or write tables, plots and the document from records
    Papers(Box<Papers>),
    /// Generate load: run many viewers at once and report how they fared
    Swarm(Box<Swarm>),
    /// Serve plain QUIC streams of zeros, the baseline for `swarm --against plain`
    Plain(Plain),
}

/// Cases to measure.
#[derive(Debug, Args)]
pub(crate) struct Cases {
    /// Measure only cases whose name contains this text, such as encode/ or /128x4096
    filter: Option<String>,
    /// List the cases and exit
    #[arg(long)]
    list: bool,
    /// Use few shapes and short rounds; the figures are rough
    #[arg(long)]
    quick: bool,
    /// Blocks per generation, combined with every --k (repeatable, or separated by commas). In s4
    /// source symbols per source block, in s5 native chunks
    #[arg(
        long,
        value_name = "BLOCKS",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=56_403),
    )]
    n: Vec<u16>,
    /// Bytes per block, combined with every --n (repeatable, or separated by commas). In s4 bytes
    /// per symbol, in s5 per chunk
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    k: Vec<u32>,
    /// Instruction sets to compare, by default all that this processor supports (repeatable, or
    /// separated by commas)
    #[arg(long, value_name = "ISA", value_delimiter = ',')]
    isa: Vec<Isa>,
    /// Threads of the device and of cases that use all cores; by default one per core
    #[arg(long, value_name = "COUNT", default_value_t = Threads::Auto)]
    threads: Threads,
    /// Also write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Rows of the papers.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("rows").args(["paper", "row", "from"]).multiple(true).required(true),
)]
pub(crate) struct Papers {
    #[command(flatten)]
    cases: Cases,
    /// Measure the rows of s1, s2, s4, s5, claim (GPU beside CPU), figures (our own) or all
    /// (repeatable, or separated by commas)
    #[arg(long, value_name = "PAPER", value_delimiter = ',')]
    paper: Vec<PaperName>,
    /// Measure these rows, such as S1-6 (repeatable, or separated by commas)
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    row: Vec<String>,
    /// Measure only these GPU kernels and these contenders of s4 and s5 (repeatable, or separated
    /// by commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Measure all sizes in the figures of s4 and s5 instead of a selection; takes hours and up to
    /// 4 GB of memory
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Back ends to measure
    #[arg(long, value_name = "BACKEND", default_value = "all")]
    backend: BenchBackend,
    /// Field polynomial of the GPU's encode kernels: 0x11d, or Rijndael's 0x11b as in S2
    #[arg(long, value_name = "POLYNOMIAL", default_value = "0x11d", value_parser = parse_field)]
    field: Field,
    /// Plot every row into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Read records written by --json instead of measuring (repeatable, or separated by commas)
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Write the results of all rows into the pages of this directory, between their markers
    #[arg(long, value_name = "DIR", requires = "from")]
    document: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PaperName {
    S1,
    S2,
    S3,
    S4,
    S5,
    Claim,
    Figures,
    All,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BenchBackend {
    All,
    Cpu,
    Cuda,
}

/// Many viewers of one server.
#[derive(Debug, Args)]
pub(crate) struct Swarm {
    /// The server, such as ncs://media.example:4443
    #[arg(value_name = "URL")]
    server: Server,
    /// Path of a media playlist or of a large file; its first part is the stream's name
    pub(crate) path: Option<String>,
    #[command(flatten)]
    pub(crate) options: swarm::Options,
    /// Trust only the certificate with this SHA-256, if the URL names none; by default the system's
    /// certificate authorities decide
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<Fingerprint>,
    /// Send this token to the server
    #[arg(
        long,
        value_name = "TOKEN",
        env = "NCPEER_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Client certificate chain, in PEM, for servers that ask for one
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Log more: -v logs info messages, -vv debug messages
    #[arg(long, short, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What coded streams are compared with.
#[derive(Debug, Args)]
pub(crate) struct Plain {
    /// UDP address for viewers
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from(([127, 0, 0, 1], 4444)))]
    pub(crate) listen: SocketAddr,
    /// Congestion controller
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub(crate) congestion: Congestion,
}

impl Swarm {
    /// What the viewers connect to and with; a token or certificate that is not there now is an
    /// error.
    pub(crate) fn source(&self) -> Result<Config, String> {
        let trust = self.fingerprint.map_or(Trust::System, Trust::Fingerprint);
        let token = TokenSource::of_options(self.token.as_deref(), self.token_file.as_deref())?;
        let certificate = match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => {
                Some(ClientPair::read(cert, key).map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        Ok(Config {
            token,
            certificate,
            ..Config::new(self.server.clone(), trust)
        })
    }
}

impl Cases {
    pub(crate) fn options(self, set: bench::Set) -> bench::Options {
        let Self {
            filter,
            list,
            quick,
            n,
            k,
            isa,
            threads,
            json,
        } = self;
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        bench::Options {
            set,
            filter,
            list,
            quick,
            n,
            k,
            isas: isa,
            threads,
            json,
            papers: None,
            command,
        }
    }
}

impl Papers {
    pub(crate) fn options(self) -> bench::Options {
        let Self {
            cases,
            paper,
            row: rows,
            kernel: kernels,
            full,
            backend,
            field,
            plots,
            from,
            document,
        } = self;
        let is_wanted = |group: &bench::Group| {
            paper.iter().any(|paper| match paper {
                PaperName::All => true,
                PaperName::S1 => *group == bench::Group::S1,
                PaperName::S2 => *group == bench::Group::S2,
                PaperName::S3 => *group == bench::Group::S3,
                PaperName::S4 => *group == bench::Group::S4,
                PaperName::S5 => *group == bench::Group::S5,
                PaperName::Claim => *group == bench::Group::Claim,
                PaperName::Figures => *group == bench::Group::Figures,
            })
        };
        let groups = bench::Group::ALL.into_iter().filter(is_wanted).collect();
        let backend = match backend {
            BenchBackend::All => bench::Backend::All,
            BenchBackend::Cpu => bench::Backend::Cpu,
            BenchBackend::Cuda => bench::Backend::Cuda,
        };
        let papers = bench::Papers {
            groups,
            rows,
            kernels,
            full,
            backend,
            field,
            plots,
            document,
            from,
        };
        bench::Options {
            papers: Some(papers),
            ..cases.options(bench::Set::All)
        }
    }
}

fn parse_field(text: &str) -> Result<Field, String> {
    match text.to_ascii_lowercase().as_str() {
        "0x11d" => Ok(Field::Standard),
        "0x11b" => Ok(Field::Rijndael),
        _ => Err("expected 0x11d or 0x11b".into()),
    }
}

const AFTER_HELP: &str = "\
Examples:
  ncbench cpu --json cpu.json                          our own coding on the CPU over n and k
  ncbench cases encode/                                encoding alone
  ncbench papers --paper s1,s2 --json papers.json      every row of both papers
  ncbench papers --paper all --list                    all rows and their cases
  ncbench swarm ncs://127.0.0.1:4443 /live/master.m3u8 --fingerprint 3f0c… --viewers 1000

Exit codes: 0 done, 1 failed while running, 2 wrong usage, 3 no connection, 4 no such object,
5 no device, 6 cannot listen, 7 a wrong result, 141 the output pipe was closed.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bench_is_of_one_set() {
        let options =
            |arguments: &[&str]| match Cli::try_parse_from(["ncbench"].iter().chain(arguments))
                .unwrap()
                .command
            {
                Command::Cases(cases) => cases.options(bench::Set::All),
                Command::Cpu(cases) => cases.options(bench::Set::Cpu),
                Command::Papers(papers) => papers.options(),
                other => panic!("{other:?}"),
            };
        let cpu = options(&[
            "cpu",
            "--n",
            "64",
            "--isa",
            "ssse3",
            "--threads",
            "3",
            "encode/",
        ]);
        assert_eq!(
            (cpu.set, cpu.n, cpu.isas, cpu.filter.as_deref()),
            (bench::Set::Cpu, vec![64], vec![Isa::Ssse3], Some("encode/"))
        );
        assert_eq!(cpu.threads.count(), 3);
        let all = options(&["cases", "--k", "1024", "decode/"]);
        assert_eq!(
            (all.set, all.k, all.filter.as_deref()),
            (bench::Set::All, vec![1024], Some("decode/"))
        );
        assert_eq!(options(&["cases"]).set, bench::Set::All);
        let papers = options(&["papers", "--row", "S1-6", "--n", "64"]);
        assert_eq!(
            (papers.papers.unwrap().rows, papers.n),
            (vec!["S1-6".to_owned()], vec![64])
        );
    }

    #[test]
    fn odd_values_are_refused() {
        for arguments in [
            &["cpu", "--row", "S1-6"][..],
            &["papers"],
            &["papers", "--paper", "s6"],
            &["papers", "--paper", "s1", "--document", "x.md"],
            &["papers", "--paper", "s4", "--full", "--quick"],
        ] {
            assert!(
                Cli::try_parse_from(["ncbench"].iter().chain(arguments)).is_err(),
                "{arguments:?}"
            );
        }
    }
}
