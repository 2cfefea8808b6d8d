//! The programs that a stage runs.

use std::path::PathBuf;

use crate::cargo::{Failed, cargo, root};

/// The three programs of one build.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    directory: PathBuf,
    name: String,
}

impl Programs {
    /// Builds the working tree under `profile`.
    pub(crate) fn build(profile: &str) -> Result<Self, Failed> {
        let mut line = vec!["build", "--quiet", "--profile", profile, "--bins"];
        line.extend(PACKAGES);
        cargo(&line)?;
        Ok(Self::at(root().join("target").join(profile), "working tree"))
    }

    /// Those that lie in this directory, under a name for people.
    pub(crate) fn at(directory: PathBuf, name: &str) -> Self {
        Self { directory, name: name.to_owned() }
    }

    /// What people call this build.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where one of them lies.
    pub(crate) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }
}

/// The packages that hold them.
pub(crate) const PACKAGES: [&str; 6] =
    ["--package", "controld", "--package", "backend-recovery", "--package", "sim"];
