//! Simulated fleets.
