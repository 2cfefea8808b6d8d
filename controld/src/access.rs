//! The routes of the control API, and who may use each.
//!
//! The router is built from this table and from nothing else, so that no route can exist without an access.

use axum::http::Method;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anybody who reaches the port.
    Open,
    /// The holder of the newest credential, while the server is not shutting down.
    Driver,
    /// The holder of any acceptable credential, also while shutting down (O-002.7, O-002.9).
    AdoptionOnly,
}

/// Every operation of the control API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Health,
    Identity,
    Prove,
    Handshake,
    Claim,
    Rotate,
    Confirm,
    Shutdown,
    CreateInstance,
    ListInstances,
    Instance,
    StopInstance,
    Turn,
    AcknowledgeTurn,
    Prompt,
    Cancel,
    AnswerPermission,
    Events,
}

impl Route {
    /// All of them.
    pub(crate) const ALL: [Self; 18] = [
        Self::Health,
        Self::Identity,
        Self::Prove,
        Self::Handshake,
        Self::Claim,
        Self::Rotate,
        Self::Confirm,
        Self::Shutdown,
        Self::CreateInstance,
        Self::ListInstances,
        Self::Instance,
        Self::StopInstance,
        Self::Turn,
        Self::AcknowledgeTurn,
        Self::Prompt,
        Self::Cancel,
        Self::AnswerPermission,
        Self::Events,
    ];

    /// Who may use it.
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Health | Self::Identity | Self::Prove | Self::Handshake => Access::Open,
            Self::Rotate | Self::Shutdown => Access::AdoptionOnly,
            Self::Claim
            | Self::Confirm
            | Self::CreateInstance
            | Self::ListInstances
            | Self::Instance
            | Self::StopInstance
            | Self::Turn
            | Self::AcknowledgeTurn
            | Self::Prompt
            | Self::Cancel
            | Self::AnswerPermission
            | Self::Events => Access::Driver,
        }
    }

    /// Its method and path.
    pub(crate) fn place(self) -> (Method, &'static str) {
        match self {
            Self::Health => (Method::GET, "/health"),
            Self::Identity => (Method::GET, "/identity"),
            Self::Prove => (Method::POST, "/ownership/prove"),
            Self::Handshake => (Method::POST, "/auth/handshake"),
            Self::Claim => (Method::POST, "/api/v1/ownership/claim"),
            Self::Rotate => (Method::POST, "/api/v1/ownership/rotate"),
            Self::Confirm => (Method::POST, "/api/v1/ownership/confirm"),
            Self::Shutdown => (Method::POST, "/api/v1/ownership/shutdown"),
            Self::CreateInstance => (Method::POST, "/api/v1/instances"),
            Self::ListInstances => (Method::GET, "/api/v1/instances"),
            Self::Instance => (Method::GET, "/api/v1/instances/{id}"),
            Self::StopInstance => (Method::DELETE, "/api/v1/instances/{id}"),
            Self::Turn => (Method::GET, "/api/v1/instances/{id}/turn"),
            Self::AcknowledgeTurn => (Method::POST, "/api/v1/instances/{id}/turn/ack"),
            Self::Prompt => (Method::POST, "/api/v1/instances/{id}/prompt"),
            Self::Cancel => (Method::POST, "/api/v1/instances/{id}/cancel"),
            Self::AnswerPermission => (Method::POST, "/api/v1/instances/{id}/permissions/{permission}"),
            Self::Events => (Method::GET, "/api/v1/instances/{id}/events"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_four_routes_are_open() {
        let open: Vec<_> = Route::ALL
            .into_iter()
            .filter(|route| route.access() == Access::Open)
            .map(|route| route.place().1)
            .collect();
        assert_eq!(vec!["/health", "/identity", "/ownership/prove", "/auth/handshake"], open);
    }

    #[test]
    fn no_two_routes_share_a_place() {
        let mut places: Vec<_> = Route::ALL.into_iter().map(|route| format!("{:?}", route.place())).collect();
        places.sort();
        places.dedup();
        assert_eq!(Route::ALL.len(), places.len());
    }

    #[test]
    fn everything_under_the_api_needs_a_credential() {
        for route in Route::ALL {
            assert_eq!(route.place().1.starts_with("/api/"), route.access() != Access::Open);
        }
    }
}
