//! The rows of the tables: which algorithm, with which settings, and against which control.

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Every algorithm from one start.
    Algorithms,
    /// Self-distillation beside GRPO where a grader says what would have been right.
    Feedback,
    /// What lag does to the corrections.
    Lag,
}

impl Part {
    pub(crate) const ALL: [Part; 3] = [Part::Algorithms, Part::Feedback, Part::Lag];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Algorithms => "algorithms",
            Part::Feedback => "feedback",
            Part::Lag => "lag",
        }
    }
}

/// A row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) algorithm: &'static str,
    /// What its run file says beyond what all say.
    pub(crate) changes: Vec<String>,
    /// What its control says beyond that; absent where there is no control.
    pub(crate) control: Option<Vec<String>>,
    /// The most interesting of the changes, for the table.
    pub(crate) note: &'static str,
    /// Whether it starts earlier in the warm-up, when few answers are right.
    pub(crate) early: bool,
}

impl Case {
    fn new(name: &str, algorithm: &'static str, note: &'static str, changes: &[&str], control: &[&str]) -> Case {
        let own = |list: &[&str]| list.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let name = name.to_owned();
        Case { name, algorithm, note, changes: own(changes), control: Some(own(control)), early: false }
    }
}

impl Case {
    /// The folder of the model that teaches, where one does.
    pub(crate) fn teacher(&self, control: bool) -> Option<&str> {
        let control = self.control.iter().flatten().filter(|_| control);
        let named = control.chain(&self.changes).find_map(|change| change.strip_prefix("algorithm.teacher="));
        // In `sdpo` it is the name of a rule.
        named.filter(|_| self.algorithm == "distill")
    }
}

pub(crate) fn of(part: Part) -> Vec<Case> {
    match part {
        Part::Algorithms => algorithms(),
        Part::Feedback => feedback(),
        Part::Lag => lag(),
    }
}

const COINS: &[&str] = &["control.coin_flips=true"];
/// Two updates a step, so that in the second one the policy has moved: else all that bound the ratio would be the same.
const TWICE: &str = "algorithm.minibatch_groups=32";
/// The vocabulary has 97 tokens that can be said, fewer than the default compares.
const TOP: &str = "algorithm.top_k=50";
/// A teacher that stays able to read what it is shown, which a policy that is never shown anything unlearns.
const FROZEN: &str = "algorithm.teacher=frozen";
/// As many attempts or answers a step as others have attempts, each at another task.
const ALONE: &str = "batch={ tasks = 512, group_size = 1 }";
const HALVES: &str = "algorithm.minibatch_groups=256";
/// A step of as many given pairs, in two updates.
const PAIRS: [&str; 3] =
    ["data.file=pairs.jsonl", "batch={ tasks = 256, group_size = 2 }", "algorithm.minibatch_groups=128"];

/// Every algorithm, with its published setting but for what is named here.
#[rustfmt::skip]
pub(crate) fn algorithms() -> Vec<Case> {
    let plain = |name| Case::new(name, name, "", &[TWICE], COINS);
    let once = |name, note, changes: &[&str]| Case::new(name, name, note, changes, COINS);
    let with = |name, algorithm, note, change: &str| Case::new(name, algorithm, note, &[TWICE, change], COINS);
    let flipped: &[&str] = &["data.file=flipped.jsonl"];
    vec![
        plain("grpo"),
        with("grpo_top_entropy", "grpo", "`select.rule = \"top_entropy\"`", "algorithm.select.rule=top_entropy"),
        with("grpo_clip_cov", "grpo", "`select.rule = \"clip_cov\"`", "algorithm.select.rule=clip_cov"),
        with("grpo_kl_cov", "grpo", "`select.rule = \"kl_cov\"`", "algorithm.select.rule=kl_cov"),
        with("grpo_dual_clip", "grpo", "`dual_clip = 3`", "algorithm.dual_clip=3.0"),
        plain("dr_grpo"),
        once("rloo", "one update a step", &[]),
        once("reinforce", "one update a step, `baseline = \"batch_mean\"`", &["algorithm.baseline=batch_mean"]),
        plain("reinforce_pp"),
        plain("max_rl"),
        plain("ppo"),
        with("dapo", "dapo", "`overlong = {}`", "algorithm.overlong={}"),
        plain("gspo"),
        plain("cispo"),
        plain("sapo"),
        plain("dro"),
        plain("oapl"),
        plain("raft"),
        with("dpo", "dpo", "pairs of its own attempts, `pairs = \"ranked\"`", "algorithm.pairs=ranked"),
        Case::new("dpo_given", "dpo", "given pairs, `learning_rate = 3e-5`",
            &[&PAIRS[..], &["optimiser.learning_rate=3e-5"]].concat(), flipped),
        Case::new("sft", "sft", "given answers", &["data.file=answers.jsonl", ALONE], &["data.file=shuffled.jsonl"]),
        Case::new("distill", "distill", "taught by the end of the warm-up", &[TWICE, "algorithm.teacher=teacher"],
            &["algorithm.teacher=nobody"]),
        Case::new("sdpo", "sdpo", "`top_k = 50`, `teacher = \"frozen\"`", &[TWICE, TOP, FROZEN], COINS),
        with("sdpo_ema", "sdpo", "`top_k = 50`, a teacher that follows", TOP),
        Case::new("reward_model", "reward_model", "given pairs",
            &[&PAIRS[..], &["checkpoint.every=20", "checkpoint.keep_last=100"]].concat(), flipped),
    ]
}

/// The same grader for all, which says what would have been right and which only `sdpo` reads; from the start of the other
/// tables, and from one where a group of attempts is seldom right once.
fn feedback() -> Vec<Case> {
    let all = ["eval.every=5", "eval.attempts=1", "env.0.grader=[{ kind = 'last_number', tells = true }]"];
    let shapes: [(&str, &'static str, &'static str, &[&str]); 6] = [
        ("grpo", "grpo", "nothing", &[TWICE]),
        ("reinforce_pp", "reinforce_pp", "nothing", &[TWICE]),
        ("sdpo", "sdpo", "an attempt that succeeded, else what the grader says", &[TWICE, TOP, FROZEN]),
        ("sdpo_ema", "sdpo", "the same, from a teacher that follows", &[TWICE, TOP]),
        ("reinforce_pp_alone", "reinforce_pp", "nothing; one attempt a task", &[ALONE, HALVES]),
        ("sdpo_alone", "sdpo", "what the grader says; one attempt a task", &[ALONE, HALVES, TOP, FROZEN]),
    ];
    let mut cases = Vec::new();
    for early in [false, true] {
        for (name, algorithm, note, changes) in shapes {
            let name = if early { format!("early_{name}") } else { name.to_owned() };
            let changes = [&all, changes].concat();
            cases.push(Case { control: None, early, ..Case::new(&name, algorithm, note, &changes, &[]) });
        }
    }
    cases
}

/// Every correction at every lag, from the same start with the same settings.
fn lag() -> Vec<Case> {
    let rules: [(&str, &'static str, &'static str, &[&str]); 6] = [
        ("none", "grpo", "", &[TWICE]),
        ("token_tis", "grpo", "", &[TWICE, "algorithm.correction.rule=token_tis"]),
        ("decoupled", "grpo", "", &[TWICE, "algorithm.correction.rule=decoupled"]),
        ("m2po", "grpo", "", &[TWICE, "algorithm.correction.rule=m2po"]),
        ("oapl", "oapl", "", &[TWICE]),
        ("oapl_tenth", "oapl", "`beta2 = 0.1`", &[TWICE, "algorithm.beta2=0.1"]),
    ];
    let mut cases = Vec::new();
    for lag in [0, 1, 4, 16, 64] {
        for (name, algorithm, note, changes) in rules {
            let mut case = Case::new(&format!("lag_{lag}_{name}"), algorithm, note, changes, &[]);
            if lag > 0 {
                case.changes.extend([format!("max_lag={lag}"), "control.hold_lag=true".to_owned()]);
            }
            case.control = None;
            cases.push(case);
        }
    }
    cases
}
