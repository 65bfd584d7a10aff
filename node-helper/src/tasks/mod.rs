//! One file a kind that the helper runs without the GPUs.

pub mod exec;
mod nearest;
mod ownership;
mod putfile;
mod sysctl;
#[cfg(test)]
mod testing;
