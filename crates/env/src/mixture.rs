//! In which order training tasks are drawn.

use std::sync::Arc;

use episode::Task;
use episode::random::Stream;

use crate::{EnvError, Environment, Environments, Split};

/// The training tasks of all environments, mixed by weight, each environment's in a new seeded order every epoch.
pub struct Mixture {
    seed: u64,
    parts: Vec<(Arc<dyn Environment>, f64)>,
}

impl Mixture {
    /// A mixture of these environments.
    ///
    /// - Errors: [`EnvError::TooFew`] when one has no training tasks.
    pub fn new(environments: &Environments, seed: u64) -> Result<Self, EnvError> {
        let parts: Vec<_> = environments.iter().map(|(env, weight)| (env.clone(), weight)).collect();
        for (env, _) in &parts {
            if env.tasks(Split::Train).is_empty() {
                let (env, detail) = (env.name().to_owned(), "all of them are held out".to_owned());
                return Err(EnvError::TooFew { env, split: Split::Train, needed: 1, got: 0, detail });
            }
        }
        Ok(Mixture { seed, parts })
    }

    /// The `n` tasks of a step.
    ///
    /// - Holds: a pure function of seed, step and n; the steps together go through every environment without repeating a task
    ///   within an epoch.
    pub fn draw(&self, step: u64, n: usize) -> Vec<Task> {
        self.draw_at(step.saturating_mul(n as u64), n)
    }

    /// The `n` tasks from a position of the endless order on, for callers that draw a varying number.
    ///
    /// - Holds: after any number of draws each environment has had its share to within one task for each other environment.
    pub fn draw_at(&self, position: u64, n: usize) -> Vec<Task> {
        let mut drawn = vec![0u64; self.parts.len()];
        for _ in 0..position {
            let part = self.furthest_behind(&drawn);
            drawn[part] += 1;
        }
        let mut orders: Vec<Option<(u64, Vec<usize>)>> = vec![None; self.parts.len()];
        let mut tasks = Vec::with_capacity(n);
        for _ in 0..n {
            let part = self.furthest_behind(&drawn);
            tasks.push(self.task(part, drawn[part], &mut orders[part]));
            drawn[part] += 1;
        }
        tasks
    }

    /// The environment whose next task is due first.
    fn furthest_behind(&self, drawn: &[u64]) -> usize {
        let due = |i: usize| (drawn[i] as f64 + 0.5) / self.parts[i].1;
        (1..drawn.len()).fold(0, |best, i| if due(i) < due(best) { i } else { best })
    }

    /// The task an environment gives as its `count`th, with its order of the current epoch at hand.
    fn task(&self, part: usize, count: u64, order: &mut Option<(u64, Vec<usize>)>) -> Task {
        let env = &self.parts[part].0;
        let tasks = env.tasks(Split::Train);
        let (epoch, place) = (count / tasks.len() as u64, (count % tasks.len() as u64) as usize);
        if order.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let stream = Stream::new(&format!("curriculum {}", env.name()), &[self.seed, epoch]);
            *order = Some((epoch, stream.permutation(tasks.len())));
        }
        let place = order.as_ref().map_or(place, |(_, order)| order[place]);
        tasks[place].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, jsonl};
    use std::collections::BTreeSet;
    use std::path::Path;

    /// An environment of `n` tasks for each name.
    fn mixture(folder: &Path, parts: &[(&str, usize, f64)], seed: u64) -> Mixture {
        let list = parts.iter().map(|(name, n, weight)| {
            let file = folder.join(format!("{name}.jsonl"));
            let lines: Vec<String> = (0..*n).map(|i| format!(r#"{{"prompt": "{i}", "gold": "{i}"}}"#)).collect();
            std::fs::write(&file, lines.join("\n")).unwrap();
            let source = jsonl::Settings { tasks: file, held_out: None, held_out_share: Some(0.0) };
            let mut settings = Settings::plain(crate::Kind::Jsonl(source));
            settings.name = (*name).to_owned();
            let text = crate::grader::Kind::Text(crate::grader::text::Settings::default());
            settings.graders = vec![crate::grader::Settings::plain(text)];
            settings.weight = *weight;
            settings
        });
        let environments = Environments::load(&list.collect::<Vec<_>>(), Path::new("")).unwrap();
        Mixture::new(&environments, seed).unwrap()
    }

    #[test]
    fn j1_steps_are_a_pure_function_of_seed_and_step() {
        let folder = tempfile::tempdir().unwrap();
        let parts = [("a", 7, 2.0), ("b", 5, 1.0)];
        let whole: Vec<Task> = (0..10).flat_map(|s| mixture(folder.path(), &parts, 3).draw(s, 4)).collect();
        assert_eq!(mixture(folder.path(), &parts, 3).draw_at(0, 40), whole);
        assert_eq!(mixture(folder.path(), &parts, 3).draw(7, 4), whole[28..32]);
        assert_ne!(mixture(folder.path(), &parts, 4).draw_at(0, 40), whole);
    }

    #[test]
    fn an_epoch_holds_every_task_once_and_the_next_one_another_order() {
        let folder = tempfile::tempdir().unwrap();
        let mixture = mixture(folder.path(), &[("a", 10, 1.0)], 1);
        let epoch = |e: u64| mixture.draw(e, 10);
        for e in 0..5 {
            assert_eq!(epoch(e).iter().map(|t| &t.id).collect::<BTreeSet<_>>().len(), 10);
        }
        assert_ne!(epoch(0), epoch(1));
    }

    #[test]
    fn shares_follow_the_weights_at_every_point() {
        let folder = tempfile::tempdir().unwrap();
        let mixture = mixture(folder.path(), &[("a", 7, 0.5), ("b", 5, 0.3), ("c", 100, 0.2)], 1);
        let drawn = mixture.draw_at(0, 300);
        for n in 1..=300 {
            for (name, share) in [("a", 0.5), ("b", 0.3), ("c", 0.2)] {
                let count = drawn[..n].iter().filter(|t| t.env == name).count() as f64;
                assert!((count - share * n as f64).abs() <= 2.0, "{name} has {count} of {n}");
            }
        }
    }

    #[test]
    fn h4_tasks_of_two_environments_with_the_same_text_are_two_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let mixture = mixture(folder.path(), &[("a", 1, 1.0), ("b", 1, 1.0)], 1);
        let ids: BTreeSet<_> = mixture.draw(0, 2).into_iter().map(|t| t.id).collect();
        assert_eq!(ids.len(), 2);
    }
}
