//! The messages of the control stream as values, and the limits that hold for all of them.
//!
//! [`frame`](super::frame) turns them into bytes and back. Parsed values keep every limit named
//! here. Whoever builds a message to send keeps them, too (debug builds assert it).

use bytes::Bytes;

use super::version::MINOR;
use super::violation::Violation;
use crate::object::{Codec, Coding, SegmentId, Shape};
pub use crate::object::{RefusalCode as RequestCode, Signature, Tree};

/// Most bytes of a path with its query.
pub const PATH_MAX: usize = 2048;
/// Most bytes of a stream's name.
pub const STREAM_NAME_MAX: usize = 128;
/// Most bytes of a media type.
pub const CONTENT_TYPE_MAX: usize = 255;
/// Most bytes of an object inside META.
pub const INLINE_MAX: usize = 16_384;
/// Most bytes of META's signature, of any scheme.
pub const SIGNATURE_MAX: usize = 256;
/// Most bytes of a ticket.
pub const TICKET_MAX: usize = 256;
/// Most bytes of a peer's address in PEERS.
pub const ADDRESS_MAX: usize = 64;
/// Most bytes of a SIGNAL.
pub const SIGNAL_MAX: usize = 8192;
/// Most columns of CHECKS.
pub const COLUMNS_MAX: u8 = 16;
/// Most entries of HAVE.
pub const HOLDINGS_MAX: usize = 64;
/// Most entries of PEERS.
pub const PEERS_MAX: usize = 16;
/// Most entries of ALTERNATES.
pub const ALTERNATES_MAX: usize = 4;
/// Most bytes of a server's address in ALTERNATES.
pub const SERVER_ADDRESS_MAX: usize = 261;
/// Bytes of a block's hash: BLAKE3 of the padded block, cut.
pub const BLOCK_HASH_LEN: usize = 16;
/// Most bytes of an explanation in ERROR.
pub const REASON_MAX: usize = 256;
/// Most bytes of an agent's name in HELLO.
pub const AGENT_MAX: usize = 64;
/// Most bytes of the coding that a query about a segment names.
pub const CODING_MAX: usize = 64;
/// Most ranges of a REQUEST.
pub const RANGES_MAX: usize = 64;
/// Most bytes of a token.
pub const TOKEN_MAX: usize = 4096;
/// The duration of a grant without an end, in milliseconds.
pub const GRANT_FOREVER: u64 = (1 << 62) - 1;
/// Most parameters of a HELLO.
pub const PARAMETERS_MAX: u64 = 64;

/// Whether `path` is valid in GET and META: it starts with `/`, is at most [`PATH_MAX`] long and
/// consists of visible ASCII (everything else is percent-encoded, as in HTTP).
pub fn is_path(path: &str) -> bool {
    path.len() <= PATH_MAX
        && path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The name of the stream that a path begins with.
pub fn stream_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split(['/', '?']).next().unwrap_or_default()
}

/// Whether `name` is a valid name of a stream: 1 to [`STREAM_NAME_MAX`] visible ASCII characters
/// other than `/`, `?` and `#`.
pub fn is_stream_name(name: &str) -> bool {
    (1..=STREAM_NAME_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#'))
}

/// Whether `address` is valid in ALTERNATES: a host name, an IPv4 address or an IPv6 address in
/// brackets, `:`, and a port from 1 to 65535.
pub fn is_server_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else {
        return false;
    };
    // Whether it is one of IPv6 is seen when it is used: web pages have no parser for it.
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_fit = |byte: u8| match in_brackets {
        Some(_) => byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'),
        None => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'),
    };
    let inside = in_brackets.unwrap_or(host);
    let is_host = !inside.is_empty() && inside.bytes().all(is_fit);
    let is_port = !port.starts_with(['0', '+']) && port.parse::<u16>().is_ok();
    address.len() <= SERVER_ADDRESS_MAX && is_host && is_port
}

/// Whether `token` is valid in AUTH: 1 to [`TOKEN_MAX`] visible ASCII characters.
pub fn is_token(token: &str) -> bool {
    (1..=TOKEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A frame of the control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// First frame of each side.
    Hello(Hello),
    /// Shows a credential.
    Auth(Credential),
    /// Answers AUTH.
    Grant {
        /// How long the credential counts from now on, in milliseconds; 0 if it does not count,
        /// [`GRANT_FOREVER`] for no end of its own.
        lasts_ms: u64,
    },
    /// Asks for the metadata of an object, or of the part of it that covers `offset`.
    Get(Get),
    /// Answers GET with metadata, or announces a new segment to a subscriber.
    Meta(Meta),
    /// Answers GET or SUBSCRIBE with a refusal.
    Error(RequestError),
    /// Asks for announcements of new segments of a stream.
    Subscribe(Subscribe),
    /// Confirms a subscription.
    SubscribeOk {
        /// The request it answers.
        request: u64,
    },
    /// Ends a subscription.
    Unsubscribe {
        /// The request that opened it.
        request: u64,
    },
    /// Asks for blocks of one generation.
    Request(Request),
    /// Adds credit to an open request.
    Credit {
        /// The request.
        alias: u16,
        /// How many more blocks may come.
        blocks: u32,
    },
    /// Moves the deadline of an open request (ignorable).
    Reschedule {
        /// The request.
        alias: u16,
        /// Milliseconds from now after which its blocks are useless.
        deadline_ms: u64,
    },
    /// Ends a request: the generation is complete, or not wanted any more.
    Stop {
        /// The request.
        alias: u16,
        /// Why.
        reason: StopReason,
    },
    /// Refuses or ends a request from the sender's side.
    Reject {
        /// The request.
        alias: u16,
        /// Why.
        code: RequestCode,
        /// When to ask again, in milliseconds; 0 for never.
        retry_after_ms: u64,
    },
    /// The receiver's progress (ignorable).
    Rank {
        /// The request.
        alias: u16,
        /// Independent blocks held, from all senders.
        rank: u32,
        /// Redundant blocks of this request.
        useless: u32,
        /// Datagrams of this request that never came, by gaps in their sequence numbers.
        lost: u32,
    },
    /// The sender is about to leave: no new requests, open ones may finish.
    GoAway {
        /// How long open requests may take, in milliseconds.
        drain_ms: u64,
    },
    /// Asks for the hashes of a segment's source blocks; they come on a stream of their own.
    GetHashes {
        /// Chosen by the asker, from the numbers of its GETs.
        request: u64,
        /// The segment.
        segment: SegmentId,
        /// The segment meant, of those with these bytes.
        meant: Meant,
    },
    /// Asks for secret checksums of a generation, to test rows with.
    GetChecks(GetChecks),
    /// The secret checksums.
    Checks(Checks),
    /// Reports the sender of blocks that were proved wrong (ignorable).
    Blame {
        /// The segment.
        segment: SegmentId,
        /// Index of the generation in the segment.
        generation: u32,
        /// Blocks proved wrong.
        blocks: u32,
        /// SHA-256 of the certificate that their sender showed.
        identity: [u8; 32],
    },
    /// Reports changes of the segments that the sender holds and would serve (ignorable).
    Have(Vec<Holding>),
    /// Offers to serve others (ignorable).
    Offer {
        /// UDP port on the address that the connection comes from; 0 withdraws the offer.
        port: u16,
        /// SHA-256 of the certificate that the sender shows there.
        identity: [u8; 32],
    },
    /// Names others that serve a segment (ignorable).
    Peers {
        /// The segment.
        segment: SegmentId,
        /// At most [`PEERS_MAX`].
        peers: Vec<Introduction>,
    },
    /// Offers to serve other web pages, to which the server introduces this one (ignorable).
    OfferPage {
        /// Whether it serves. Otherwise the offer is withdrawn.
        serves: bool,
    },
    /// Tells a page the identity under which others know it (ignorable).
    Page {
        /// Chosen by the server.
        identity: [u8; 32],
    },
    /// Names other pages that serve a segment (ignorable).
    Pages {
        /// The segment.
        segment: SegmentId,
        /// At most [`PEERS_MAX`].
        pages: Vec<PageIntroduction>,
    },
    /// Names other servers of the same streams, instead of those named before (ignorable).
    Alternates {
        /// Whether the consumer is to go to one of them now. Otherwise they are for the case that
        /// this server falls silent or refuses.
        moves: bool,
        /// At most [`ALTERNATES_MAX`], best first.
        servers: Vec<Alternate>,
    },
    /// Carries what a page says to another to connect with it (ignorable).
    Signal {
        /// The page that it is for; from the server: the page that it comes from.
        page: [u8; 32],
        /// 1 to [`SIGNAL_MAX`] bytes that concern the two pages alone.
        bytes: Bytes,
    },
}

/// The credential in AUTH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A bearer token.
    Token(Token),
    /// A ticket for a peer, from the server that introduced it.
    Ticket(Ticket),
}

/// A bearer ticket, at most [`TICKET_MAX`] bytes. Its possession entitles, so it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket(pub Bytes);

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({} bytes)", self.0.len())
    }
}

/// Asks for secret checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetChecks {
    /// Chosen by the asker, from the numbers of its GETs.
    pub request: u64,
    /// The segment.
    pub segment: SegmentId,
    /// Index of the generation in the segment.
    pub generation: u32,
    /// Random. The answer is signed together with it, so that no earlier answer can replace it.
    pub nonce: [u8; 32],
    /// The segment meant, of those with these bytes.
    pub meant: Meant,
}

/// The segment meant, of those that have the same bytes and so the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Meant {
    /// The one that the sender has named last: the query does not tell.
    #[default]
    LastNamed,
    /// The one with this coding, and no other.
    Coded(Coding),
    /// One with an unknown coding, so that no such segment exists here.
    Foreign,
}

/// Secret checksums of a generation: `columns` random combinations of the bytes of each source
/// block.
#[derive(Clone, PartialEq, Eq)]
pub struct Checks {
    /// The GET_CHECKS that it answers.
    pub request: u64,
    /// The seed of the combinations.
    pub seed: [u8; 32],
    /// 1 to [`COLUMNS_MAX`].
    pub columns: u8,
    /// n × columns bytes, block by block.
    pub projections: Bytes,
    /// Ed25519 signature by the key of the stream, if it has one.
    pub signature: Option<[u8; 64]>,
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whoever knows the seed can make blocks that pass.
        f.debug_struct("Checks")
            .field("request", &self.request)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// One segment of HAVE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The segment.
    pub segment: SegmentId,
    /// The segment meant, of those with these bytes, if the message tells.
    pub meant: Meant,
    /// How much of it is held.
    pub state: HoldingState,
}

/// How much of a segment is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldingState {
    /// Nothing any more.
    Gone,
    /// Some blocks, recoded for each peer.
    Partial,
    /// All of it.
    Complete,
}

/// One peer of PEERS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// Address and UDP port.
    pub address: std::net::SocketAddr,
    /// SHA-256 of its certificate.
    pub identity: [u8; 32],
    /// How long the ticket counts, in milliseconds.
    pub lasts_ms: u64,
    /// The credential for it.
    pub ticket: Ticket,
}

/// One server of ALTERNATES.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alternate {
    /// Host and UDP port ([`is_server_address`]).
    pub address: String,
    /// SHA-256 of the certificate that it shows. Without it, the certificate is checked as that of
    /// any host.
    pub identity: Option<[u8; 32]>,
}

/// One page of PAGES.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageIntroduction {
    /// Its identity at this server.
    pub identity: [u8; 32],
    /// How long the ticket counts, in milliseconds.
    pub lasts_ms: u64,
    /// The credential for it.
    pub ticket: Ticket,
}

/// A bearer token. Its possession entitles, so it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// The limits of one side; the other side keeps them.
///
/// `n_max`, `block_bytes_max` and `segment_bytes_max` bind the METAs that come to the sender of the
/// HELLO, `requests_max` and `credit_max` the REQUESTs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Lowest and highest minor version supported.
    pub minor: (u64, u64),
    /// Codes supported besides random linear ones over bytes, which every side supports.
    pub codecs: Codecs,
    /// Most blocks in a generation.
    pub n_max: u16,
    /// Largest block in bytes.
    pub block_bytes_max: u32,
    /// Largest segment in bytes.
    pub segment_bytes_max: u64,
    /// Most open requests of a peer at the sender of this HELLO.
    pub requests_max: u16,
    /// Most blocks of unspent credit of a request.
    pub credit_max: u32,
    /// Name of the program, at most 64 bytes of printable ASCII.
    pub agent: String,
    /// The visit of the connection: a later connection of the same visit replaces it.
    pub visit: Option<VisitId>,
    /// Whether another server has sent the consumer here (ALTERNATES).
    pub is_sent: bool,
}

/// Names the connections that a consumer makes to one sender, beside or instead of each other. It
/// is random, and must not be shown to other parties.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VisitId(pub [u8; 16]);

impl std::fmt::Debug for VisitId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VisitId([hidden])")
    }
}

impl Hello {
    /// The values of a HELLO without parameters.
    pub fn defaults() -> Self {
        Self {
            minor: (MINOR, MINOR),
            codecs: Codecs::default(),
            n_max: 256,
            block_bytes_max: 16_384,
            segment_bytes_max: 8 << 20,
            requests_max: 16,
            credit_max: 512,
            agent: String::new(),
            visit: None,
            is_sent: false,
        }
    }

    /// The minor version to use with a side that has sent `other`: the highest that both support.
    pub fn agree(&self, other: &Self) -> Result<u64, Violation> {
        let (low, high) = (
            self.minor.0.max(other.minor.0),
            self.minor.1.min(other.minor.1),
        );
        if low > high {
            Err(Violation::Version)
        } else {
            Ok(high)
        }
    }

    /// Whether a segment of this shape may be announced to the sender of this HELLO.
    pub fn takes(&self, shape: &Shape) -> bool {
        shape.length() <= self.segment_bytes_max
            && shape.block_bytes() <= self.block_bytes_max
            && shape.n_max() <= self.n_max
            && self.codecs.have(shape.codec())
    }
}

/// The codes that a side supports besides random linear ones over bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Codecs {
    /// Reed-Solomon.
    pub reed_solomon: bool,
    /// RaptorQ.
    pub raptorq: bool,
    /// Random linear codes over a prime field, with homomorphic hashes.
    pub gfq: bool,
}

impl Codecs {
    /// All codes.
    pub const ALL: Self = Self {
        reed_solomon: true,
        raptorq: true,
        gfq: true,
    };

    /// Whether a code is among them.
    pub const fn have(self, codec: Codec) -> bool {
        match codec {
            Codec::Rlnc => true,
            Codec::ReedSolomon { .. } => self.reed_solomon,
            Codec::RaptorQ => self.raptorq,
            Codec::RlncQ { .. } => self.gfq,
        }
    }
}

/// Asks for metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// Chosen by the asker, unique among its unanswered requests.
    pub request: u64,
    /// Path of the object with its query, starting with `/` and the name of the stream.
    pub path: String,
    /// Byte of the object that the answer must cover.
    pub offset: u64,
    /// How many bytes from `offset` on the asker wants in all, if it knows. The server can then cut
    /// at a playlist's byte ranges. At least 1.
    pub length: Option<u64>,
    /// Whether to answer from what is held, and to ask nobody for it.
    pub held_only: bool,
}

/// Asks for announcements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// Chosen by the asker; announcements carry it.
    pub request: u64,
    /// Name of the stream, without `/`.
    pub stream: String,
}

/// The description of an object, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The GET or SUBSCRIBE.
    pub request: u64,
    /// Path of the object with its query.
    pub path: String,
    /// BLAKE3 of the described bytes: of the segment, or of the whole mutable object.
    pub id: SegmentId,
    /// Where these bytes start in the object.
    pub offset: u64,
    /// Their number.
    pub length: u64,
    /// Bytes of the whole object, if the origin has told.
    pub object_length: Option<u64>,
    /// Changes when the object's ETag, Last-Modified or length at the origin changes. Parts of
    /// different versions must not be combined.
    pub version: u64,
    /// How long the answer may be kept without asking again, in milliseconds.
    pub max_age_ms: u64,
    /// The object's media type, empty if unknown.
    pub content_type: String,
    /// How the bytes come.
    pub delivery: Delivery,
    /// Signature of the stream's key, if it has one.
    pub signature: Option<Signature>,
    /// The tree that proves each part alone; peers that do not know this field skip it.
    pub tree: Option<Tree>,
}

/// How the bytes of a META come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Coded: ask for its generations. Length of the shape is the META's.
    Coded(Shape),
    /// Whole, here.
    Inline(Bytes),
    /// Whole, on a unidirectional stream that names the request.
    Stream,
}

impl Delivery {
    /// The code of the blocks, if there are any.
    pub(super) const fn codec(&self) -> Codec {
        match self {
            Self::Coded(shape) => shape.codec(),
            Self::Inline(_) | Self::Stream => Codec::Rlnc,
        }
    }
}

/// Asks for blocks of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the asker, unique among its open requests on this connection; blocks carry it.
    pub alias: u16,
    /// The segment.
    pub segment: SegmentId,
    /// Index of the generation in the segment.
    pub generation: u32,
    /// Milliseconds from now after which the blocks are useless.
    pub deadline_ms: u64,
    /// Blocks that may come at first.
    pub credit: u32,
    /// The kinds of blocks that may come.
    pub accept: Accept,
    /// Source blocks wanted first, as (first index, count), disjoint and ascending; empty leaves
    /// the choice to the sender. With Reed-Solomon, parity blocks are numbered behind them, and no
    /// block outside of the ranges comes.
    pub ranges: Vec<(u16, u16)>,
    /// The segment meant, of those with these bytes.
    pub meant: Meant,
}

/// Which blocks a request takes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// Coded blocks.
    pub coded: bool,
    /// Source blocks.
    pub systematic: bool,
    /// Datagrams, where header and block fit one.
    pub datagrams: bool,
    /// Blocks with an explicit vector.
    pub recoded: bool,
}

/// Refuses a GET or SUBSCRIBE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The GET or SUBSCRIBE.
    pub request: u64,
    /// Why.
    pub code: RequestCode,
    /// When to ask again, in milliseconds; 0 for never.
    pub retry_after_ms: u64,
    /// For people: one line of at most 256 bytes, of [plain](super::text::is_plain) characters.
    pub reason: String,
}

/// Why a consumer ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The generation is complete.
    Complete,
    /// Its deadline passed.
    Deadline,
    /// It is not wanted any more.
    Cancelled,
}
