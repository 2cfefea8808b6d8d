//! Which instances there are. An id is taken until its instance is gone.

use std::collections::BTreeMap;

use wire::{CreateInstance, InstanceId};

/// The instances by id; `T` is whatever supervises one.
#[derive(Debug)]
pub(crate) struct InstanceTable<T> {
    rows: BTreeMap<InstanceId, Row<T>>,
}

#[derive(Debug)]
struct Row<T> {
    request: CreateInstance,
    instance: T,
}

/// An instance that the table holds now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission<T> {
    /// It was made for this request.
    Created(T),
    /// It was there, made from an equal request.
    Existing(T),
}

/// Why the table took no instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CreateRefused {
    /// The id belongs to an instance that was made from another request.
    #[error("instance {0} exists and was made from another request")]
    Conflict(InstanceId),
    /// No room for one more.
    #[error("the server supervises {INSTANCES} instances already")]
    TooMany,
}

impl<T: Clone> InstanceTable<T> {
    /// Empty.
    pub(crate) fn new() -> Self {
        Self { rows: BTreeMap::new() }
    }

    /// The instance for this request; `make` runs only if there is none yet. The same request again is the same
    /// instance.
    pub(crate) fn create(
        &mut self,
        request: &CreateInstance,
        make: impl FnOnce() -> T,
    ) -> Result<Admission<T>, CreateRefused> {
        if let Some(row) = self.rows.get(&request.instance) {
            return if row.request == *request {
                Ok(Admission::Existing(row.instance.clone()))
            } else {
                Err(CreateRefused::Conflict(request.instance.clone()))
            };
        }
        if self.rows.len() >= INSTANCES {
            return Err(CreateRefused::TooMany);
        }
        let instance = make();
        let row = Row { request: request.clone(), instance: instance.clone() };
        self.rows.insert(request.instance.clone(), row);
        Ok(Admission::Created(instance))
    }

    /// The instance of that id.
    pub(crate) fn find(&self, id: &InstanceId) -> Option<T> {
        self.rows.get(id).map(|row| row.instance.clone())
    }

    /// Forgets an instance that is gone.
    pub(crate) fn remove(&mut self, id: &InstanceId) -> Option<T> {
        self.rows.remove(id).map(|row| row.instance)
    }

    /// Every instance, sorted by id.
    pub(crate) fn all(&self) -> Vec<T> {
        self.rows.values().map(|row| row.instance.clone()).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

/// Each instance is a process with three pipes; this many exhaust a host long before they exhaust the table.
pub(crate) const INSTANCES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str, command: &str) -> CreateInstance {
        CreateInstance {
            instance: InstanceId::new(id),
            session: wire::SessionId::new("s-1"),
            command: command.into(),
            args: vec![],
            env: BTreeMap::new(),
            directory: "/tmp".into(),
            source_roots: vec![],
            mode: None,
            resume: None,
        }
    }

    #[test]
    fn the_same_request_twice_makes_one_instance() {
        let mut table = InstanceTable::new();
        assert_eq!(Ok(Admission::Created(1)), table.create(&request("i-1", "agent"), || 1));
        assert_eq!(
            Ok(Admission::Existing(1)),
            table.create(&request("i-1", "agent"), || panic!("made twice"))
        );
        assert_eq!(1, table.len());
    }

    #[test]
    fn an_id_is_not_taken_over_by_another_request_until_its_instance_is_gone() {
        let mut table = InstanceTable::new();
        table.create(&request("i-1", "agent"), || 1).unwrap();
        let conflict = CreateRefused::Conflict(InstanceId::new("i-1"));
        assert_eq!(Err(conflict), table.create(&request("i-1", "other"), || 2));
        assert_eq!(Some(1), table.remove(&InstanceId::new("i-1")));
        assert_eq!(Ok(Admission::Created(2)), table.create(&request("i-1", "other"), || 2));
    }

    #[test]
    fn a_full_table_refuses_and_still_knows_its_own() {
        let mut table = InstanceTable::new();
        for number in 0..INSTANCES {
            table.create(&request(&format!("i-{number}"), "agent"), || number).unwrap();
        }
        assert_eq!(Err(CreateRefused::TooMany), table.create(&request("more", "agent"), || 0));
        assert!(matches!(table.create(&request("i-7", "agent"), || 0), Ok(Admission::Existing(7))));
    }
}
