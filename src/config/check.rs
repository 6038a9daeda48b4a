//! Checks across keys: values that contradict each other, and values that work but are probably
//! mistakes.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;

use super::{Config, Error, published};
use crate::admission::KeysComplaint;
use crate::block::ELEMENT_BYTES;
use crate::cluster::Shared;
use crate::cluster::beat::ADDRESSES_MAX;
use crate::cluster::engine::Kind as Engine;
use crate::cluster::members::Config as Static;
use crate::directory::Policy;
use crate::gf::rows::sparse::weight_min;
use crate::ingest::names::Names;
use crate::object::{Codec, HashGroup, Shape, ShapeError};
use crate::peer::TokenSource;
use crate::ring::{Capacity, LineKind};
use crate::store::Portion;
use crate::stream::{CodecError, CodecName, Signer};
use crate::web::Certificate;
use crate::wire::block::Kind;
use crate::{host, stream, telemetry};

/// A remark on the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The key it is about.
    pub key: String,
    /// The problem, and what to do.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.key, self.text)
    }
}

/// Refuses contradictions, all at once, and returns warnings.
pub(super) fn check(config: &Config, file: Option<&Path>) -> Result<Vec<Finding>, Error> {
    let mut report = Report::default();
    numbers(config, &mut report);
    tls(config, &mut report);
    web(config, &mut report);
    listeners(config, &mut report);
    operators(config, &mut report);
    admission(config, &mut report);
    cluster(config, &mut report);
    if let Err(error) = telemetry::check_filter(&config.telemetry.log_filter) {
        report.fault("telemetry.log_filter", error.to_string());
    }
    for (name, stream) in &config.stream {
        one_stream(config, name, stream, &mut report);
    }
    for published in published::secrets(config, file) {
        report.fault(published.key, published.text);
    }
    if report.faults.is_empty() {
        Ok(report.warnings)
    } else {
        Err(Error::Contradiction(report.faults))
    }
}

#[derive(Default)]
struct Report {
    faults: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl Report {
    fn fault(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.faults.push(Finding {
            key: key.into(),
            text: text.into(),
        });
    }

    fn warning(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.warnings.push(Finding {
            key: key.into(),
            text: text.into(),
        });
    }
}

fn numbers(config: &Config, report: &mut Report) {
    for (key, is_zero) in [
        (
            "encoder.batch_blocks_max",
            config.encoder.batch_blocks_max == 0,
        ),
        ("encoder.prefill_blocks", config.encoder.prefill_blocks == 0),
        ("ring.max_reuse", config.ring.max_reuse == 0),
        ("session.requests_max", config.session.requests_max == 0),
        ("session.credit_max", config.session.credit_max == 0),
        (
            "session.questions_per_second",
            config.session.questions_per_second == 0,
        ),
        (
            "session.address_questions_per_second",
            config.session.address_questions_per_second == 0,
        ),
        (
            "session.token_questions_per_second",
            config.session.token_questions_per_second == 0,
        ),
        ("endpoint.wait_max", config.endpoint.wait_max.is_zero()),
    ] {
        if is_zero {
            report.fault(key, "must be at least 1: zero does not mean unlimited");
        }
    }
    for (key, time) in [
        ("telemetry.rate_interval", config.telemetry.rate_interval),
        ("session.idle_timeout", config.session.idle_timeout),
        ("session.stall_timeout", config.session.stall_timeout),
        ("session.hello_timeout", config.session.hello_timeout),
        ("admission.refresh", config.admission.refresh),
        ("device.hang_timeout", config.device.hang_timeout),
        ("ingest.connect_timeout", config.ingest.connect_timeout),
        ("ingest.read_timeout", config.ingest.read_timeout),
        ("ingest.rescan", config.ingest.rescan),
    ] {
        if time.is_zero() {
            report.fault(key, "must be above zero");
        }
    }
    let segment = config.ingest.segment_max_bytes;
    if segment.as_u64() == 0 || segment.as_u64() > Shape::LENGTH_MAX {
        report.fault(
            "ingest.segment_max_bytes",
            format!(
                "{segment} must be from 1B to {}MiB",
                Shape::LENGTH_MAX >> 20
            ),
        );
    }
    if config.store.bytes.as_u64() < 2 * segment.as_u64() {
        report.fault(
            "store.bytes",
            format!(
                "{} cannot hold two segments of `ingest.segment_max_bytes` = {segment}",
                config.store.bytes
            ),
        );
    }
    for (key, bytes) in [
        ("session.leased_bytes_max", config.session.leased_bytes_max),
        (
            "session.address_leased_bytes_max",
            config.session.address_leased_bytes_max,
        ),
        (
            "session.token_leased_bytes_max",
            config.session.token_leased_bytes_max,
        ),
    ] {
        if bytes.as_u64() == 0 {
            report.fault(key, "must be at least 1: zero does not mean unlimited");
        }
        if bytes.as_u64() > config.store.bytes.as_u64() / 2 {
            report.warning(
                key,
                format!(
                    "{bytes} is more than half of `store.bytes` = {}",
                    config.store.bytes
                ),
            );
        }
    }
    if let Portion::Bytes(bytes) = config.store.device_bytes
        && bytes.as_u64() < 2 * segment.as_u64()
    {
        let text = format!(
            "{} cannot hold two segments of `ingest.segment_max_bytes` = {segment}",
            config.store.device_bytes
        );
        report.fault("store.device_bytes", text);
    }
    if config.encoder.prefill_blocks > config.encoder.batch_blocks_max {
        report.warning(
            "encoder.prefill_blocks",
            "the prefill of one segment needs more than one batch",
        );
    }
}

fn tls(config: &Config, report: &mut Report) {
    match (&config.tls.cert, &config.tls.key) {
        (Some(_), None) => report.fault(
            "tls.cert",
            "a certificate needs its key: set `tls.key`, too, or remove both",
        ),
        (None, Some(_)) => report.fault(
            "tls.key",
            "a key needs its certificate: set `tls.cert`, too, or remove both",
        ),
        _ => {}
    }
}

fn web(config: &Config, report: &mut Report) {
    let (web, admission) = (&config.web, &config.admission);
    if let Some(listen) = web.listen
        && !listen.ip().to_canonical().is_loopback()
    {
        if config.tls.cert.is_none() {
            report.fault(
                "web.listen",
                "off loopback the player needs a certificate that browsers trust: set `tls.cert` \
                 and `tls.key`",
            );
        }
        if web.origins.is_empty() {
            report.fault(
                "web.listen",
                "off loopback the server does not know by which name viewers reach the player: \
                 set `web.origins`, such as https://tv.example:8443",
            );
        }
    }
    if web.origins.is_empty() && web.listen.is_none() {
        return;
    }
    if web.certificate == Certificate::Tls && config.tls.cert.is_none() {
        report.warning(
            "web.certificate",
            "browsers accept no certificate that the server has generated for peers: set \
             `tls.cert`, or leave this to \"auto\"",
        );
    }
    if web.origins.is_any() && admission.keys.is_none() {
        report.warning(
            "web.origins",
            "`*` lets the page of any site fetch everything by its visitors' browsers: name the \
             origins, or set `admission.keys`",
        );
    }
}

fn cluster(config: &Config, report: &mut Report) {
    let cluster = &config.cluster;
    let nats = &cluster.nats;
    for (key, other, is_single) in [
        (
            "user",
            "password_file",
            nats.user.is_some() != nats.password_file.is_some(),
        ),
        ("cert", "key", nats.cert.is_some() != nats.key.is_some()),
    ] {
        if is_single {
            let text = format!("it goes with `cluster.nats.{other}`: set both or neither");
            report.fault(format!("cluster.nats.{key}"), text);
        }
    }
    if let Err(error) = nats.check() {
        report.fault("cluster.nats.urls", error.to_string());
    }
    if let Err(reason) = cluster.members.check() {
        report.fault("cluster.static.members", reason);
    }
    shared(&cluster.config, cluster.engine, report);
    if cluster.engine == Engine::None {
        return;
    }
    if cluster.name.is_none() {
        report.fault(
            "cluster.name",
            "a server of a fleet needs a name that no other has",
        );
    }
    if cluster.advertise.is_empty() {
        report.fault(
            "cluster.advertise",
            "the other servers do not know where peers reach this one: name an address, such as \
             \"media-1.example:4443\"",
        );
    }
    if cluster.advertise.len() > ADDRESSES_MAX {
        report.fault(
            "cluster.advertise",
            format!("at most {ADDRESSES_MAX} addresses: name those that all peers reach"),
        );
    }
    match cluster.engine {
        Engine::Nats if nats.urls.is_empty() => {
            report.fault("cluster.nats.urls", "no server of NATS is named");
        }
        Engine::Static => listed(config, report),
        Engine::None | Engine::Nats => {}
    }
    shared_origin(config, report);
}

/// The configuration that servers share is in a store of NATS.
fn shared(shared: &Shared, engine: Engine, report: &mut Report) {
    if shared.enabled && engine != Engine::Nats {
        report.fault(
            "cluster.config.enabled",
            "the fleet's configuration is kept by NATS: set `cluster.engine = \"nats\"`",
        );
    }
    if shared.refresh < REFRESH_MIN {
        let text = "must be at least 1s: whoever applies a document tells the servers at once";
        report.fault("cluster.config.refresh", text);
    }
    if !matches!(shared.replicas, 1 | 3 | 5) {
        report.fault(
            "cluster.config.replicas",
            "1, 3 or 5 nodes of NATS keep it: an even number survives no more than the odd one \
             below it",
        );
    }
}

/// Servers fetch from each other what the origin is asked for once.
fn shared_origin(config: &Config, report: &mut Report) {
    let (cluster, admission) = (&config.cluster, &config.admission);
    if !cluster.asks_members() {
        return;
    }
    let token = cluster.token_file.clone().map(TokenSource::File);
    match token.map(|token| token.read()) {
        Some(Ok(_)) => {}
        Some(Err(reason)) => report.fault("cluster.token_file", reason),
        None if admission.is_closed()
            && config.stream.values().any(|stream| stream.origin.is_some()) =>
        {
            report.warning(
                "cluster.token_file",
                "viewers need a token here, and other servers are shown none, so that each asks \
                 the origin: name a file with a token for them, or set \
                 `cluster.ask_origin_once = false`",
            );
        }
        None => {}
    }
}

/// The engine is a list of members.
fn listed(config: &Config, report: &mut Report) {
    let Static {
        members,
        secret_file,
    } = &config.cluster.members;
    if members.is_none() {
        report.fault(
            "cluster.static.members",
            "no list of members is named: a file, or an https URL",
        );
    }
    if secret_file.is_none() {
        report.fault(
            "cluster.static.secret_file",
            "members know each other by a secret: name the file that holds it",
        );
    }
    let admission = &config.admission;
    if admission.clients_ca.is_some() && admission.required && admission.keys.is_none() {
        report.fault(
            "cluster.engine",
            "\"static\" does not go with `admission.clients_ca` as the only way in: servers show \
             each other no client certificates, so all handshakes would fail; set \
             `admission.keys`, too, or use \"nats\"",
        );
    }
}

fn listeners(config: &Config, report: &mut Report) {
    let listen = &config.endpoint.listen;
    if listen.is_empty() {
        report.fault(
            "endpoint.listen",
            "no address: set at least one, or peers cannot connect",
        );
    }
    let fixed: Vec<_> = listen
        .iter()
        .filter(|address| address.port() != 0)
        .collect();
    if fixed.iter().collect::<BTreeSet<_>>().len() < fixed.len() {
        report.fault("endpoint.listen", "an address is listed twice");
    }
}

fn operators(config: &Config, report: &mut Report) {
    let telemetry = &config.telemetry;
    match (&telemetry.certificate, &telemetry.key) {
        (Some(_), None) => report.fault(
            "telemetry.certificate",
            "a certificate needs its key: set `telemetry.key`, too, or remove both",
        ),
        (None, Some(_)) => report.fault(
            "telemetry.key",
            "a key needs its certificate: set `telemetry.certificate`, too, or remove both",
        ),
        _ => {}
    }
    for name in &telemetry.hosts {
        if let Err(reason) = host::parse(name) {
            report.fault("telemetry.hosts", reason);
        }
    }
    if !telemetry.listen.ip().to_canonical().is_loopback() {
        report.warning(
            "telemetry.listen",
            "everybody who reaches this address can read the metrics, without authentication",
        );
        if telemetry.credential.is_some() && telemetry.certificate.is_none() {
            report.warning(
                "telemetry.credential",
                "without `telemetry.certificate` and `telemetry.key` the page for operators is \
                 not shown at this address: its password would travel in the clear",
            );
        }
    }
}

fn admission(config: &Config, report: &mut Report) {
    let admission = &config.admission;
    if let Err(error) = admission.check_listen(&config.endpoint.listen) {
        report.fault("endpoint.listen", error.to_string());
    }
    match admission.check_keys() {
        Err(complaint @ KeysComplaint::Unprotected) => {
            report.warning("admission.keys", complaint.to_string())
        }
        Err(complaint) => report.fault("admission.keys", complaint.to_string()),
        Ok(()) => {}
    }
    for (key, is_zero) in [
        (
            "admission.token_connections_max",
            admission.token_connections_max == Some(0),
        ),
        (
            "admission.address_connections_max",
            admission.address_connections_max == Some(0),
        ),
        (
            "admission.token_bytes_per_second",
            admission.token_bytes_per_second == Some(ByteSize(0)),
        ),
        (
            "admission.address_bytes_per_second",
            admission.address_bytes_per_second == Some(ByteSize(0)),
        ),
    ] {
        if is_zero {
            report.fault(
                key,
                "zero does not mean unlimited: remove the key for no limit",
            );
        }
    }
    let has_means = admission.keys.is_some() || admission.clients_ca.is_some();
    if has_means && !admission.required {
        report.warning(
            "admission.required",
            "off: clients without a token or certificate can fetch everything",
        );
    }
    if admission.insecure && admission.is_closed() {
        report.warning(
            "admission.insecure",
            "has no effect because keys or authorities are required",
        );
    }
    if admission.audience.is_some() && admission.keys.is_none() {
        report.warning(
            "admission.audience",
            "has no effect without `admission.keys`, because the server reads no tokens",
        );
    }
}

fn one_stream(config: &Config, name: &str, stream: &stream::Config, report: &mut Report) {
    let key = |part: &str| format!("stream.{name}.{part}");
    if !is_name(name) {
        report.fault(
            format!("stream.{name}"),
            "a name must be 1 to 64 letters, digits, `-` or `_`",
        );
    }
    match (&stream.origin, &stream.directory) {
        (Some(_), Some(_)) => report.fault(
            key("directory"),
            "a stream has an origin or a folder: remove one of them",
        ),
        (None, None) => report.fault(
            format!("stream.{name}"),
            "a stream needs `origin` (a URL) or `directory` (a path)",
        ),
        (Some(_), None) => {
            if let Err(stream::Fault::Origin(_, reason)) = stream.http() {
                report.fault(key("origin"), reason);
            }
        }
        (None, Some(_)) => {}
    }
    let is_playlist = |url: &str| {
        PLAYLISTS
            .iter()
            .any(|end| url.to_ascii_lowercase().ends_with(end))
    };
    if stream
        .origin
        .as_ref()
        .is_some_and(|origin| is_playlist(origin.expose()))
    {
        let text = "must be the folder of the playlist, not the playlist itself: viewers request \
                    the playlist below the stream's name";
        report.warning(key("origin"), text);
    }
    if let Err(error) = Shape::new(1, stream.block_bytes, stream.n_max) {
        let part = if matches!(error, ShapeError::NMax(_)) {
            "n_max"
        } else {
            "block_bytes"
        };
        return report.fault(key(part), error.to_string());
    }
    if stream.generations_min == 0 {
        report.fault(
            key("generations_min"),
            "must be at least 1: a segment has at least one generation",
        );
    }
    // Another check reports an empty segment size.
    match stream.shape(
        config
            .ingest
            .segment_max_bytes
            .as_u64()
            .clamp(1, Shape::LENGTH_MAX),
    ) {
        Err(stream::Fault::Shape(error)) => {
            let part = match error {
                ShapeError::Words(_) | ShapeError::Hashes { .. } => "block_bytes",
                ShapeError::WideNMax(_) => "n_max",
                _ => "parity",
            };
            return report.fault(key(part), error.to_string());
        }
        Err(stream::Fault::Codec(error)) => {
            let part = match error {
                CodecError::Parity => "parity",
                CodecError::HashBits | CodecError::NoGroup(_) => "hash_bits",
                CodecError::NoKey => "signing_key",
                CodecError::NoParity | CodecError::RowWeight => "codec",
            };
            return report.fault(key(part), error.to_string());
        }
        Err(_) | Ok(_) => {}
    }
    signing_key(&key("signing_key"), stream, report);
    names(&key, stream, report);
    if stream.peers != Policy::Off && stream.signing_key.is_none() {
        report.fault(
            key("peers"),
            "viewers that fetch from each other need signed segments: set `signing_key`, too",
        );
    }
    row_weight(&key("row_weight"), stream, report);
    if let Ok(Codec::RlncQ { group }) = stream.codec() {
        homomorphic(
            &key("hash_bits"),
            &key("block_bytes"),
            group,
            stream,
            report,
        );
    }
    ring(config, &key("block_bytes"), stream, report);
    datagrams(&key("block_bytes"), stream, report);
}

/// Costs of a code over a prime field that are probably mistakes.
fn homomorphic(
    bits: &str,
    block_bytes: &str,
    group: HashGroup,
    stream: &stream::Config,
    report: &mut Report,
) {
    if group == HashGroup::P1024 {
        report.warning(
            bits,
            "1024 bits are a legacy strength, as in the paper: about 2^80 steps forge a block. \
             2048 bits cost four times as much",
        );
    }
    let (n, k) = (u32::from(stream.n_max), stream.block_bytes);
    let vector = n * u32::try_from(ELEMENT_BYTES).unwrap_or(u32::MAX);
    if vector > k / 2 {
        let text = format!(
            "a recoded block of {k} bytes has {vector} bytes of coefficients: use blocks of at \
             least {} bytes or a lower `n_max`",
            (2 * vector)
                .next_multiple_of(Codec::WORD_BYTES)
                .min(Shape::BLOCK_BYTES_MAX)
        );
        report.warning(block_bytes, text);
    }
}

fn signing_key(key: &str, stream: &stream::Config, report: &mut Report) {
    match stream.signing_key.as_deref().map(Signer::look) {
        Some(Err(error)) => report.fault(key, error.to_string()),
        Some(Ok(None)) => {
            let text = "the file does not exist: the server will create it; copy it to every other \
                        server of the stream";
            report.warning(key, text);
        }
        Some(Ok(Some(_))) | None => {}
    }
}

fn names(key: &impl Fn(&str) -> String, stream: &stream::Config, report: &mut Report) {
    for (part, patterns) in [("refuse", &stream.refuse), ("allow", &stream.allow)] {
        if let Err((text, error)) = Names::new(patterns, &[]) {
            report.fault(key(part), format!("\"{text}\": {error}"));
        }
    }
    if stream.directory.is_some()
        && let Ok(names) = stream.names()
        && let hidden = names.published_hidden()
        && !hidden.is_empty()
    {
        let text = format!(
            "hidden names such as {} are published because a list replaces the default: add \".*\" \
             to it",
            hidden.join(", ")
        );
        report.warning(key("refuse"), text);
    }
    if stream.directory.is_none() && !stream.allow.is_empty() {
        report.warning(
            key("allow"),
            "has no effect with `origin`: only a `directory` refuses names",
        );
    }
}

fn row_weight(key: &str, stream: &stream::Config, report: &mut Report) {
    match stream.sparse_rows() {
        Err(error) => report.fault(key, error.to_string()),
        Ok(Some(weight)) if weight.get() >= stream.n_max => {
            report.warning(
                key,
                format!("not below `n_max` = {}: all rows are dense", stream.n_max),
            );
        }
        Ok(Some(weight)) if weight.get() < weight_min(stream.n_max) => {
            report.warning(
                key,
                "forced: peers need many more blocks than a generation has, occasionally some \
                 hundred",
            );
        }
        Ok(_) => {}
    }
}

/// The kind of coded blocks of the largest generation.
fn line_kind(stream: &stream::Config) -> LineKind {
    LineKind::coded(stream.row_weight.and_then(NonZeroU16::new), stream.n_max)
}

/// The slot size for a stream's blocks, including headroom.
pub(crate) fn slot_bytes(stream: &stream::Config) -> usize {
    let codec = stream.codec().unwrap_or_default();
    codec.coded_bytes(stream.block_bytes) as usize + line_kind(stream).headroom(codec, stream.n_max)
}

fn ring(config: &Config, key: &str, stream: &stream::Config, report: &mut Report) {
    let Capacity::Bytes(bytes) = config.ring.bytes else {
        // It holds two batches on every machine.
        return;
    };
    let slot = slot_bytes(stream) as u64;
    let slots = bytes.as_u64() / slot;
    let batch = u64::from(config.encoder.batch_blocks_max);
    if slots < batch {
        let needed = (batch * slot).div_ceil(1 << 20);
        let text = format!(
            "a ring of {bytes} holds {slots} blocks of this size, but a batch may have {batch}: \
             raise `ring.bytes` to {needed}MiB or lower `encoder.batch_blocks_max`"
        );
        return report.fault(key, text);
    }
    if slots < 2 * batch {
        report.warning(
            key,
            "the ring holds fewer than two batches of this stream: the device waits while sessions \
             drain it",
        );
    }
}

fn datagrams(key: &str, stream: &stream::Config, report: &mut Report) {
    if stream.codec == CodecName::RlncQ {
        // These always use streams.
        return;
    }
    let block = u64::from(stream.block_bytes);
    let [seeded, explicit] =
        [Kind::Seeded, Kind::Explicit].map(|kind| kind.datagram_header_len(stream.n_max) as u64);
    let header = if line_kind(stream).is_explicit() {
        explicit
    } else {
        seeded
    };
    if block + seeded > DATAGRAM_AFTER_DISCOVERY {
        return;
    }
    if block + header > DATAGRAM_AFTER_DISCOVERY {
        report.warning(
            key,
            "blocks with the coefficients of a sparse row do not fit into a datagram: they use \
             streams",
        );
    } else if block + header > DATAGRAM_AT_FIRST {
        let text = "blocks fit into a datagram only after path MTU discovery, and not on every \
                    path: until then they use streams";
        report.warning(key, text);
    } else if block + explicit > DATAGRAM_AT_FIRST && stream.codec == CodecName::Rlnc {
        let text = "a recoded block has n more bytes and does not fit into a datagram: peers \
                    cannot relay over datagrams";
        report.warning(key, text);
    }
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// More questions would only burden NATS.
const REFRESH_MIN: Duration = Duration::from_secs(1);
/// Extensions of playlists.
const PLAYLISTS: [&str; 3] = [".m3u8", ".m3u", ".mpd"];
/// The capacity of a QUIC datagram at the minimum MTU of 1200.
const DATAGRAM_AT_FIRST: u64 = 1162;
/// The same at an MTU of 1452, where discovery ends.
pub(crate) const DATAGRAM_AFTER_DISCOVERY: u64 = 1414;
