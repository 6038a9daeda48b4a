//! `ncserverd codec`: rows, blocks and files without a network.
