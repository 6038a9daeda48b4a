//! Assembly: starts the parts in order, and stops them in order.
