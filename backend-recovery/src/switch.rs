//! The switch of the capability, and whether this platform can have it (S-005).

use seam::HostFacts;

/// Whether agents outlive this backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    /// They do.
    Enabled,
    /// Switched off: the control server ends with its backend (S-005.2).
    Disabled,
    /// They cannot, whatever is configured (S-005.4).
    Unavailable(Unavailable),
}

/// Why a host cannot have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// Detaching a process is not built for this operating system.
    UnsupportedOperatingSystem,
}

impl Survival {
    /// Judges the configured switch against the host.
    pub(crate) fn judge(switched_on: bool, host: &dyn HostFacts) -> Self {
        match (host.operating_system(), switched_on) {
            ("linux" | "macos", true) => Self::Enabled,
            ("linux" | "macos", false) => Self::Disabled,
            _ => Self::Unavailable(Unavailable::UnsupportedOperatingSystem),
        }
    }

    /// Whether agents outlive this backend.
    pub(crate) const fn is_on(self) -> bool {
        matches!(self, Self::Enabled)
    }

    /// `enabled`, `disabled` or `unavailable`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Disabled => "disabled",
            Self::Unavailable(_) => "unavailable",
        }
    }

    /// Why it is unavailable, machine-readable.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Unavailable(Unavailable::UnsupportedOperatingSystem) => {
                Some("unsupported_operating_system")
            }
            Self::Enabled | Self::Disabled => None,
        }
    }
}
