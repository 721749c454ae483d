//! The index of runs: a small database that can always be rebuilt from the folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

use crate::disk::names;
use crate::{RunDir, StoreError, Summary};

const FILE: &str = "runs.sqlite";
/// How deep below the root runs are looked for.
const DEPTH: usize = 3;

/// One run as the list shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The run's id.
    pub run: String,
    /// Its folder.
    pub path: PathBuf,
    /// What its folder says about it.
    #[serde(flatten)]
    pub summary: Summary,
    /// Whether a process is writing it now.
    pub in_use: bool,
}

/// The index of runs.
#[derive(Debug)]
pub struct Index {
    path: PathBuf,
    db: Connection,
}

impl Index {
    /// Opens or makes the index in a root folder.
    ///
    /// - Errors: [`StoreError::Index`] when the database is damaged; then [`Index::rebuild`] makes it anew.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(root).map_err(StoreError::io("create", root))?;
        let path = root.join(FILE);
        let db = connect(&path).map_err(|source| StoreError::Index { path: path.clone(), source })?;
        Ok(Index { path, db })
    }

    /// Makes the index anew from the run directories below a root, keeping those elsewhere that it knew and that are
    /// still there.
    pub fn rebuild(root: &Path) -> Result<Self, StoreError> {
        let known: Vec<PathBuf> = match Index::open(root) {
            Ok(index) => index.rows()?.into_iter().map(|(path, _)| path).collect(),
            Err(StoreError::Index { .. }) => Vec::new(),
            Err(other) => return Err(other),
        };
        for file in [FILE.to_string(), format!("{FILE}-wal"), format!("{FILE}-shm")] {
            let path = root.join(file);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(StoreError::io("remove", &path)(e)),
                _ => {}
            }
        }
        let index = Index::open(root)?;
        let mut found = Vec::new();
        find_runs(root, DEPTH, &mut found)?;
        found.extend(known.iter().filter_map(|p| RunDir::read(p).ok()));
        for run in &found {
            index.record(run)?;
        }
        Ok(index)
    }

    /// Takes a run into the index, or what its folder now says about it.
    pub fn record(&self, run: &RunDir) -> Result<(), StoreError> {
        let path = fs::canonicalize(run.path()).map_err(StoreError::io("read", run.path()))?;
        let s = run.summary()?.unwrap_or_default();
        let sql = "INSERT OR REPLACE INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let path = path.to_string_lossy();
        let last_step = i64::try_from(s.last_step).unwrap_or(i64::MAX);
        let id = run.run_id().as_str();
        self.db
            .execute(sql, params![path, id, s.started, s.status, s.algorithm, s.model, last_step, s.best_score])
            .map(|_| ())
            .map_err(|e| self.error(e))
    }

    /// Every run whose folder is still there, oldest first; those that are gone are forgotten.
    ///
    /// - Holds: shows what the folders say now, not what was recorded.
    pub fn list(&self) -> Result<Vec<RunRow>, StoreError> {
        let mut out = Vec::new();
        for (path, recorded) in self.rows()? {
            match RunDir::read(&path) {
                Ok(run) => {
                    let summary = run.summary().ok().flatten().unwrap_or(recorded);
                    out.push(RunRow { run: run.run_id().to_string(), in_use: run.in_use(), summary, path });
                }
                Err(_) => self.forget(&path)?,
            }
        }
        out.sort_by(|a, b| a.summary.started.total_cmp(&b.summary.started).then_with(|| a.path.cmp(&b.path)));
        Ok(out)
    }

    /// The run of a name: its id, the name of its folder, or the folder's path.
    ///
    /// - Errors: [`StoreError::NoRun`]; [`StoreError::Ambiguous`] when several share the name.
    pub fn find(&self, name: &str) -> Result<RunRow, StoreError> {
        let wanted = fs::canonicalize(name).ok();
        let is_named = |row: &RunRow| row.run == name || row.path.file_name().is_some_and(|f| f == name);
        let rows = self.list()?;
        if let Some(row) = rows.iter().find(|r| Some(&r.path) == wanted.as_ref()) {
            return Ok(row.clone());
        }
        let mut named: Vec<RunRow> = rows.into_iter().filter(is_named).collect();
        match (named.len(), named.pop()) {
            (1, Some(row)) => Ok(row),
            (0, _) | (_, None) => Err(StoreError::NoRun { name: name.to_string(), path: self.path.clone() }),
            (count, _) => Err(StoreError::Ambiguous { name: name.to_string(), count }),
        }
    }

    /// Deletes a run's folder and forgets it.
    ///
    /// - Errors: [`StoreError::NotARun`] when the folder is anything else, [`StoreError::Locked`] while it is written;
    ///   then nothing is deleted.
    pub fn remove(&self, path: &Path) -> Result<(), StoreError> {
        let path = fs::canonicalize(path).map_err(StoreError::io("remove", path))?;
        // Holding the lock, no other process starts to write into what is being deleted.
        let writer = RunDir::open(&path)?;
        fs::remove_dir_all(&path).map_err(StoreError::io("remove", &path))?;
        drop(writer);
        self.forget(&path)
    }

    fn forget(&self, path: &Path) -> Result<(), StoreError> {
        let path = path.to_string_lossy();
        self.db.execute("DELETE FROM runs WHERE path = ?1", [path]).map(|_| ()).map_err(|e| self.error(e))
    }

    fn rows(&self) -> Result<Vec<(PathBuf, Summary)>, StoreError> {
        let columns = "path, status, started, algorithm, model, last_step, best_score";
        self.db
            .prepare(&format!("SELECT {columns} FROM runs ORDER BY path"))
            .and_then(|mut query| query.query_map([], row)?.collect())
            .map_err(|e| self.error(e))
    }

    fn error(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Index { path: self.path.clone(), source }
    }
}

fn row(row: &Row<'_>) -> rusqlite::Result<(PathBuf, Summary)> {
    let path: String = row.get(0)?;
    let summary = Summary {
        status: row.get(1)?,
        started: row.get(2)?,
        algorithm: row.get(3)?,
        model: row.get(4)?,
        last_step: u64::try_from(row.get::<_, i64>(5)?).unwrap_or_default(),
        best_score: row.get(6)?,
    };
    Ok((PathBuf::from(path), summary))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(5))?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS runs (
            path TEXT PRIMARY KEY, run TEXT NOT NULL, started REAL NOT NULL, status TEXT NOT NULL,
            algorithm TEXT NOT NULL, model TEXT NOT NULL, last_step INTEGER NOT NULL, best_score REAL
        )",
    )?;
    Ok(db)
}

fn find_runs(folder: &Path, depth: usize, found: &mut Vec<RunDir>) -> Result<(), StoreError> {
    if let Ok(run) = RunDir::read(folder) {
        found.push(run);
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    for name in names(folder)? {
        let path = folder.join(name);
        // Links are not followed: they may lead around in circles.
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir()) {
            find_runs(&path, depth - 1, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunId;

    fn run(path: &Path, id: &str, started: f64) -> RunDir {
        let writer = RunDir::create(path, RunId::new(id).unwrap()).unwrap();
        let summary = Summary { status: "finished".into(), started, last_step: 7, ..Summary::default() };
        writer.write_summary(&summary).unwrap();
        (*writer).clone()
    }

    fn ids(index: &Index) -> Vec<String> {
        index.list().unwrap().into_iter().map(|r| r.run).collect()
    }

    #[test]
    fn runs_are_listed_by_start_and_those_that_are_gone_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let index = Index::open(root.path()).unwrap();
        for (name, started) in [("b", 3.0), ("a", 2.0), ("c", 1.0)] {
            index.record(&run(&root.path().join(name), name, started)).unwrap();
        }
        assert_eq!(ids(&index), ["c", "a", "b"]);
        fs::remove_dir_all(root.path().join("a")).unwrap();
        assert_eq!(ids(&index), ["c", "b"]);
        assert_eq!(index.rows().unwrap().len(), 2);
    }

    #[test]
    fn the_index_is_rebuilt_from_the_folders_even_when_damaged() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let index = Index::open(root.path()).unwrap();
        run(&root.path().join("runs/a"), "a", 1.0);
        index.record(&run(&elsewhere.path().join("b"), "b", 2.0)).unwrap();
        drop(index);
        let index = Index::rebuild(root.path()).unwrap();
        assert_eq!(ids(&index), ["a", "b"]);
        assert_eq!(index.list().unwrap()[0].summary.last_step, 7);
        drop(index);
        fs::write(root.path().join(FILE), vec![b'x'; 5000]).unwrap();
        let error = Index::open(root.path()).unwrap_err().to_string();
        assert!(error.starts_with("index of runs `") && error.contains("runs.sqlite` cannot be used: "), "{error}");
        assert_eq!(ids(&Index::rebuild(root.path()).unwrap()), ["a"]);
    }

    #[test]
    fn a_run_is_found_by_id_folder_or_path_and_two_of_one_name_are_not_guessed() {
        let root = tempfile::tempdir().unwrap();
        run(&root.path().join("x/first"), "same", 1.0);
        run(&root.path().join("x/second"), "same", 2.0);
        let index = Index::rebuild(root.path()).unwrap();
        assert!(index.find("first").unwrap().path.ends_with("x/first"));
        assert!(index.find(root.path().join("x/second").to_str().unwrap()).unwrap().path.ends_with("x/second"));
        assert_eq!(
            index.find("same").unwrap_err().to_string(),
            "`same` names 2 runs, needed one: use the folder's path"
        );
        assert!(index.find("none").unwrap_err().to_string().starts_with("no run `none` in `"));
    }

    #[test]
    fn only_a_run_that_nobody_writes_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let precious = root.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "x").unwrap();
        let index = Index::open(root.path()).unwrap();
        assert!(matches!(index.remove(&precious), Err(StoreError::NotARun { .. })));
        assert!(precious.join("file").exists());
        let path = root.path().join("run");
        let writer = RunDir::create(&path, RunId::new("r").unwrap()).unwrap();
        index.record(&writer).unwrap();
        assert!(index.list().unwrap()[0].in_use);
        assert!(matches!(index.remove(&path), Err(StoreError::Locked { .. })));
        drop(writer);
        assert!(!index.list().unwrap()[0].in_use);
        index.remove(&path).unwrap();
        assert!(!path.exists() && ids(&index).is_empty());
    }
}
