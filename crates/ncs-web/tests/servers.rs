//! Servers that other servers have named, in virtual time.

use std::time::{Duration, Instant};

use ncs_proto::object::RefusalCode;
use ncs_proto::peer::SourceId;
use ncs_proto::peer::alternates::FIRST_ID;
use ncs_proto::wire::message::{Alternate, Hello, Message, RequestError};
use ncs_proto::wire::{CloseCode, elsewhere, frame};
use ncs_web::{Event, Peer, ReadId};

const HOME: SourceId = SourceId(0);
const OTHER: SourceId = SourceId(FIRST_ID);
const NEXT: SourceId = SourceId(FIRST_ID + 1);
const MS: Duration = Duration::from_millis(1);

/// A page of one server.
struct Page {
    peer: Peer,
    now: Instant,
}

impl Page {
    fn new() -> Self {
        let mut peer = Peer::new([7; 32], 1 << 20);
        assert!(peer.set_servers(&["media.example:4443"]));
        let mut page = Self {
            peer,
            now: Instant::now(),
        };
        page.connect(HOME);
        page.says(HOME);
        page.greet(HOME);
        page
    }

    /// A read begins.
    fn read(&mut self) -> ReadId {
        let read = self.peer.read("/live/film.ts", 0..u64::MAX, None).unwrap();
        self.peer.set_room(read, 1 << 20);
        read
    }

    fn connect(&mut self, source: SourceId) {
        self.peer.connected(self.now, source, None, [1; 16], 0);
    }

    fn greet(&mut self, source: SourceId) {
        let mut bytes = Vec::new();
        frame::encode_greeting(&Hello::defaults(), 0, &mut bytes);
        self.peer.control(self.now, source, &bytes);
        assert_eq!(self.events(), [Event::Ready(source)]);
    }

    fn tell(&mut self, source: SourceId, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.peer.control(self.now, source, &bytes);
    }

    /// What the page says to a server.
    fn says(&mut self, source: SourceId) -> Vec<Message> {
        let mut frames = frame::Reader::new();
        frames.push(&self.peer.poll_messages(self.now, source));
        std::iter::from_fn(|| frames.next().unwrap()).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.peer.poll_event(self.now)).collect()
    }

    /// Time passes, and everything is done that is due.
    fn pass(&mut self, time: Duration) -> Vec<Event> {
        let (end, mut events) = (self.now + time, Vec::new());
        while let Some(due) = self.peer.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.peer.handle_timeout(self.now);
            events.extend(self.events());
        }
        self.now = end;
        events
    }
}

fn server(address: &str) -> Alternate {
    Alternate {
        address: address.to_owned(),
        identity: Some([9; 32]),
    }
}

fn open(source: SourceId, address: &str) -> Event {
    Event::Open {
        source,
        server: server(address),
        by: HOME,
    }
}

fn names(moves: bool, addresses: &[&str]) -> Message {
    Message::Alternates {
        moves,
        servers: addresses.iter().map(|address| server(address)).collect(),
    }
}

fn refusal(request: u64) -> Message {
    Message::Error(RequestError {
        request,
        code: RefusalCode::Unknown,
        retry_after_ms: 0,
        reason: "there is none".to_owned(),
    })
}

/// The number of the request for the object of a read.
fn get(said: &[Message]) -> Option<u64> {
    let get = |message: &Message| match message {
        Message::Get(get) => Some(get.request),
        _ => None,
    };
    said.iter().find_map(get)
}

#[test]
fn a_page_turns_to_another_server_when_its_own_is_silent() {
    let mut page = Page::new();
    page.tell(HOME, &names(false, &["b.example:4443"]));
    assert_eq!(page.pass(9000 * MS), [], "it owes nothing");
    let read = page.read();
    assert!(get(&page.says(HOME)).is_some());
    assert_eq!(page.pass(250 * MS), []);
    assert!(matches!(page.says(HOME)[..], [Message::GetHashes { .. }]));
    assert_eq!(page.pass(249 * MS), []);
    let opened = open(OTHER, "b.example:4443");
    assert_eq!(page.pass(2 * MS), [opened]);
    page.connect(OTHER);
    let said = page.says(OTHER);
    let Some(Message::Hello(hello)) = said.first() else {
        panic!("{said:?}");
    };
    assert!(hello.is_sent);
    page.greet(OTHER);
    page.tell(OTHER, &refusal(get(&said).unwrap()));
    assert_eq!(page.events(), []);
    page.peer.cancel(read);
    // It serves from now on, and the other one is not tried any more.
    page.peer.disconnected(page.now, HOME, true);
    assert_eq!(page.pass(6000 * MS), [Event::Rest(HOME)]);
    // When it fails, too, both are tried at once: it has answered before.
    page.peer.disconnected(page.now, OTHER, true);
    let again = open(NEXT, "b.example:4443");
    let tried = [Event::Forget(OTHER), Event::Resume(HOME), again];
    assert_eq!(page.events(), tried);
}

/// Its origin takes seconds, or a playlist comes when there is something new.
#[test]
fn a_server_that_is_slow_is_not_taken_for_one_that_is_gone() {
    let mut page = Page::new();
    page.tell(HOME, &names(false, &["b.example:4443"]));
    page.read();
    page.says(HOME);
    let mut probes = 0;
    for _ in 0..95 {
        assert_eq!(page.pass(100 * MS), []);
        for message in page.says(HOME) {
            let Message::GetHashes { request, .. } = message else {
                panic!("{message:?}");
            };
            probes += 1;
            page.tell(HOME, &refusal(request));
        }
    }
    // After 250 ms, and then in intervals that grow to two seconds.
    assert!((5..9).contains(&probes), "{probes}");
}

#[test]
fn a_page_that_is_sent_on_leaves_when_it_has_arrived() {
    let mut page = Page::new();
    page.tell(HOME, &names(true, &["b.example:4443", "c.example:4443"]));
    let opened = open(OTHER, "b.example:4443");
    assert_eq!(page.events(), [opened]);
    // It does not answer, and the next one is tried beside it.
    let next = open(NEXT, "c.example:4443");
    assert_eq!(page.pass(500 * MS), [next]);
    page.connect(NEXT);
    let mut hello = Vec::new();
    frame::encode_greeting(&Hello::defaults(), 0, &mut hello);
    page.peer.control(page.now, NEXT, &hello);
    // It is owed nothing by the first.
    assert_eq!(page.events(), [Event::Ready(NEXT), Event::Rest(HOME)]);
    page.peer.disconnected(page.now, HOME, true);
    page.peer.disconnected(page.now, OTHER, true);
    assert_eq!(page.events(), [Event::Forget(OTHER)]);
}

#[test]
fn a_server_without_room_says_in_its_close_where_to_go() {
    let mut page = Page::new();
    let reason = elsewhere::write("the server is full", &[server("b.example:4443")]);
    let code = u64::from(CloseCode::Overload.quic());
    page.peer.closed(page.now, HOME, code, &reason);
    page.peer.disconnected(page.now, HOME, false);
    let opened = open(OTHER, "b.example:4443");
    assert_eq!(page.events(), [opened]);
    // Other codes name nobody.
    let mut page = Page::new();
    let code = u64::from(CloseCode::Internal.quic());
    page.peer.closed(page.now, HOME, code, &reason);
    page.peer.disconnected(page.now, HOME, false);
    assert_eq!(page.events(), []);
}

#[test]
fn servers_are_addresses() {
    let mut peer = Peer::new([7; 32], 1 << 20);
    assert!(peer.set_servers(&["a.example:1", "[2001:db8::1]:2"]));
    for wrong in ["", "a.example", "https://a.example", "a.example:0"] {
        assert!(!peer.set_servers(&[wrong]), "{wrong}");
    }
}
