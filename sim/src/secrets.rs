//! The SecretStore seam: private files under `<home>/secrets` of the simulated disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use seam::{BoxFuture, EntryKind, Privacy, SecretStore};

use crate::disk::failed;
use crate::trace::fields;
use crate::world::{Key, World};

/// The secrets of one process's home.
pub(crate) struct SimSecrets {
    pub(crate) world: Arc<World>,
    pub(crate) key: Key,
}

impl SimSecrets {
    /// The process's home is its `--home` argument, else its environment's, else the usual place.
    fn directory(&self) -> PathBuf {
        let state = self.world.lock();
        let process = &state.processes[&self.key];
        let mut args = process.args.iter();
        let mut home = process.env.get("KANDEV_HOME_DIR").cloned();
        while let Some(arg) = args.next() {
            if arg == "--home" {
                home = args.next().cloned();
            } else if let Some(given) = arg.strip_prefix("--home=") {
                home = Some(given.to_owned());
            }
        }
        Path::new(home.as_deref().unwrap_or(USUAL_HOME)).join("secrets")
    }
}

impl SecretStore for SimSecrets {
    fn store<'a>(&'a self, name: &'a str, secret: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let directory = self.directory();
            self.world
                .act(self.key, "secret.store", |state, told| {
                    told.extend(fields([("name", name.to_owned())]));
                    let stored = check_name(name)
                        .and_then(|()| state.write_fault(self.key))
                        .and_then(|()| state.disk.create_directory(&directory, Privacy::Owner))
                        .and_then(|()| {
                            let path = directory.join(name);
                            if state.disk.exists(&path) {
                                return Err(failed(io::ErrorKind::AlreadyExists, "the name is taken"));
                            }
                            state.disk.replace(&path, secret, Privacy::Owner)
                        });
                    if let Err(error) = &stored {
                        told.insert("failed".to_owned(), error.to_string());
                    }
                    stored
                })
                .await
        })
    }

    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        Box::pin(async move {
            check_name(name)?;
            let path = self.directory().join(name);
            self.world
                .look(self.key, "secret.load", |state| {
                    let secret = state.disk.read(&path, u64::MAX)?;
                    if state.disk.privacy(&path) != Some(Privacy::Owner) {
                        return Err(failed(io::ErrorKind::PermissionDenied, "others could have read it"));
                    }
                    Ok(secret)
                })
                .await
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            check_name(name)?;
            let path = self.directory().join(name);
            self.world
                .act(self.key, "secret.remove", |state, told| {
                    told.extend(fields([("name", name.to_owned())]));
                    match state.disk.remove(&path) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                        removed => removed,
                    }
                })
                .await
        })
    }

    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
        Box::pin(async move {
            let directory = self.directory();
            let listed = self.world.look(self.key, "secret.names", |state| state.disk.list(&directory)).await;
            let entries = match listed {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                listed => listed?,
            };
            let names = entries.iter().filter(|entry| entry.kind == EntryKind::File);
            Ok(names.filter_map(|entry| entry.path.file_name()?.to_str().map(str::to_owned)).collect())
        })
    }
}

fn check_name(name: &str) -> io::Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(plain) {
        return Err(failed(io::ErrorKind::InvalidInput, "not a name for a secret"));
    }
    Ok(())
}

/// As the seam states it.
const MAX_NAME_BYTES: usize = 128;

/// The home of the simulated user.
const USUAL_HOME: &str = "/home/user/.kandev";
