//! What the peer says about itself and other peers: offers, holdings, and reports of wrong blocks.

use bytes::Bytes;

use super::event::Event;
use super::proto::Proto;
use crate::admission::Access;
use crate::object::SegmentId;
use crate::time::Instant;
use crate::wire::message::{Holding, Introduction, Message, PageIntroduction};

impl Proto {
    /// Takes OFFER.
    pub(super) fn handle_offer(&mut self, now: Instant, port: u16, identity: [u8; 32]) {
        if self.hears_of_holdings(now) {
            self.has_offered = port != 0;
            self.events.push_back(Event::Offer { port, identity });
        }
    }

    /// Takes OFFER_PAGE.
    pub(super) fn handle_offer_page(&mut self, now: Instant, serves: bool) {
        if self.hears_of_holdings(now) {
            self.has_offered = serves;
            self.events.push_back(Event::OfferPage { serves });
        }
    }

    /// Takes SIGNAL. Signals beyond the rate, and of pages that do not serve, are dropped.
    pub(super) fn handle_signal(&mut self, now: Instant, page: [u8; 32], bytes: Bytes) {
        if self.has_offered && self.limits.signals.take(now).is_ok() {
            self.tally.signals.0 += 1;
            self.events.push_back(Event::Signal { page, bytes });
        } else {
            self.tally.signals.1 += 1;
        }
    }

    /// Takes HAVE.
    pub(super) fn handle_have(&mut self, now: Instant, holdings: Vec<Holding>) {
        if self.hears_of_holdings(now) {
            self.events.push_back(Event::Have(holdings));
        }
    }

    /// Whether an offer or holdings are taken from a peer: it has rights, and sends them at a
    /// modest rate.
    fn hears_of_holdings(&mut self, now: Instant) -> bool {
        !matches!(self.access, Access::Refused { .. }) && self.limits.offers.take(now).is_ok()
    }

    /// Takes BLAME. Reports beyond the rate, and of peers without rights, are ignored.
    pub(super) fn handle_blame(&mut self, now: Instant, report: Event) {
        match self.limits.blames.take(now) {
            Ok(()) if !matches!(self.access, Access::Refused { .. }) => {
                self.tally.blames.0 += 1;
                self.events.push_back(report);
            }
            _ => self.tally.blames.1 += 1,
        }
    }

    /// The answer to [`Event::Introduce`], where there are peers to name.
    pub fn introduce(&mut self, segment: SegmentId, peers: Vec<Introduction>) {
        self.send(Message::Peers { segment, peers });
    }

    /// The answer to [`Event::OfferPage`]: the identity under which others know this page.
    pub fn name_page(&mut self, identity: [u8; 32]) {
        self.send(Message::Page { identity });
    }

    /// The answer to [`Event::Introduce`] for a page that serves, where there are others to name.
    pub fn introduce_pages(&mut self, segment: SegmentId, pages: Vec<PageIntroduction>) {
        self.send(Message::Pages { segment, pages });
    }

    /// Passes on what another page says to this one.
    pub fn signal(&mut self, page: [u8; 32], bytes: Bytes) {
        self.send(Message::Signal { page, bytes });
    }
}
