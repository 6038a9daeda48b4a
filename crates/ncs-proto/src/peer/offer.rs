//! What this side offers to serve to others, as servers are told.

use std::collections::VecDeque;

use crate::wire::message::{HOLDINGS_MAX, Holding, HoldingState, Message};

/// Segments that a server is told of when it connects later than they came.
const HOLDINGS_TOLD_MAX: usize = 1024;

/// An offer, and the segments that are held under it.
#[derive(Debug)]
pub(super) struct Offer {
    /// Where it serves.
    message: Message,
    /// For servers that connect later.
    held: VecDeque<Holding>,
}

impl Offer {
    /// Offers to serve on this UDP port, with the certificate of this SHA-256.
    pub(super) fn new(port: u16, identity: [u8; 32]) -> Self {
        Self::with(Message::Offer { port, identity })
    }

    /// Offers to serve other web pages, to the trusted server alone.
    pub(super) fn to_pages() -> Self {
        Self::with(Message::OfferPage { serves: true })
    }

    fn with(message: Message) -> Self {
        Self {
            message,
            held: VecDeque::new(),
        }
    }

    /// Whether it is made to the trusted server alone.
    pub(super) fn is_to_pages(&self) -> bool {
        matches!(self.message, Message::OfferPage { .. })
    }

    /// Notes which holdings have changed. Beyond the limit, the oldest are forgotten.
    pub(super) fn note(&mut self, changed: &[Holding]) {
        for holding in changed {
            self.held
                .retain(|other| (other.segment, other.meant) != (holding.segment, holding.meant));
            if holding.state != HoldingState::Gone {
                self.held.push_back(*holding);
            }
        }
        while self.held.len() > HOLDINGS_TOLD_MAX {
            self.held.pop_front();
        }
    }

    /// The offer itself.
    pub(super) fn message(&self) -> Message {
        self.message.clone()
    }

    /// The offer and all holdings, for a server that has just connected.
    pub(super) fn messages(&self) -> Vec<Message> {
        let held: Vec<Holding> = self.held.iter().copied().collect();
        std::iter::once(self.message()).chain(have(&held)).collect()
    }
}

/// HAVE with these holdings, in as many messages as they need.
pub(super) fn have(holdings: &[Holding]) -> impl Iterator<Item = Message> {
    holdings
        .chunks(HOLDINGS_MAX)
        .map(|some| Message::Have(some.to_vec()))
}
