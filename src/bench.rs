//! `ncserverd bench`: measures the coding engine on this machine, checking bytes first.
