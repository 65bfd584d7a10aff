//! `apt_repository`, `deb822_repository` and `yum_repository`: where packages come from.

mod apt;
mod deb822;
mod yum;

/// Files that say where packages come from. While a prediction changes them, what the package manager says about
/// packages holds for the old ones only.
pub const APT: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d"];
pub const DNF: &str = "/etc/yum.repos.d";
