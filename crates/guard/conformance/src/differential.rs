//! Random formulas in Dogwood's own syntax over random traces, decided by Dogwood's interpreter and by our engine.

use std::sync::{Arc, Mutex};

use dogwood_language::{
    Authorizer, Event, InMemoryTemporalEngine, LoweredPolicySet, PolicySchema, ServiceSchema, TemporalEngine, Value,
};

use crate::adapter::{Engine, Tally};

const SCHEMA: &str = r#"
namespace D {
  type Input = { x: Long, y: Long };
  entity User;
  entity Gate;
  action "A" appliesTo { principal: [User], resource: [Gate], context: { input: Input } };
  action "B" appliesTo { principal: [User], resource: [Gate], context: { input: Input } };
}
"#;

/// A seeded stream of numbers (splitmix64), and names for variables.
struct Maker(u64, usize);

impl Maker {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn fresh(&mut self) -> String {
        self.1 += 1;
        format!("v{}", self.1)
    }

    fn operand(&mut self, scope: &[String]) -> String {
        match self.roll(4) {
            0 => self.roll(3).to_string(),
            1 => format!("context.input.{}", ["x", "y"][self.roll(2) as usize]),
            _ if scope.is_empty() => self.roll(3).to_string(),
            _ => scope[self.roll(scope.len() as u64) as usize].clone(),
        }
    }

    fn atom(&mut self, scope: &[String], var: Option<&str>) -> String {
        let action = ["A", "B"][self.roll(2) as usize];
        let kind = ["request", "request", "response", "error"][self.roll(4) as usize];
        let taken = self.roll(2) as usize;
        let mut args = Vec::new();
        for (i, field) in ["x", "y"].iter().enumerate() {
            match var {
                Some(var) if i == taken => args.push(format!("input.{field}: {var}")),
                _ if self.roll(2) == 0 => args.push(format!("input.{field}: {}", self.operand(scope))),
                _ => {}
            }
        }
        format!("D::Action::\"{action}\"::{kind}{{ {} }}", args.join(", "))
    }

    fn within(&mut self) -> String {
        format!("within {}s", 1 + self.roll(6))
    }

    fn formula(&mut self, depth: u64, scope: &[String]) -> String {
        if depth == 0 {
            return self.atom(scope, None);
        }
        match self.roll(14) {
            0..3 => format!("({} && {})", self.formula(depth - 1, scope), self.formula(depth - 1, scope)),
            3 => format!("!({})", self.formula(depth - 1, scope)),
            4..7 => format!("(formerly {} ({}))", self.within(), self.formula(depth - 1, scope)),
            7 => format!("(previous {} ({}))", self.within(), self.formula(depth - 1, scope)),
            8..11 => {
                let not = ["", "!"][self.roll(2) as usize];
                let left = self.formula(depth - 1, scope);
                format!("({not}({left}) since {} ({}))", self.within(), self.formula(depth - 1, scope))
            }
            11..13 => {
                let comparison = ["<", "<=", ">", ">=", "==", "!="][self.roll(6) as usize];
                format!("({} {comparison} {})", self.aggregate(depth, scope), self.operand(scope))
            }
            _ => {
                let var = self.fresh();
                let mut inner = scope.to_vec();
                inner.push(var.clone());
                let binding = match self.roll(3) {
                    0 => format!("({} == {var})", self.aggregate(depth, scope)),
                    _ => format!("(formerly {} {})", self.within(), self.atom(scope, Some(&var))),
                };
                format!("(exists ({var}: Long). ({binding} && {}))", self.formula(depth - 1, &inner))
            }
        }
    }

    fn aggregate(&mut self, depth: u64, scope: &[String]) -> String {
        let (value, point) = (self.fresh(), self.fresh());
        let by_point = self.roll(2) == 0;
        let mut body = self.atom(scope, Some(&value));
        if by_point {
            body = format!("({body} && tp({point}))");
        }
        if self.roll(4) == 0 {
            let mut inner = scope.to_vec();
            inner.push(value.clone());
            body = format!("({body} && {})", self.formula(depth - 1, &inner));
        }
        let over = if by_point { format!("({value}: Long), ({point}: Timepoint)") } else { format!("({value}: Long)") };
        let what = if self.roll(2) == 0 { format!("sum {value}") } else { "count".to_owned() };
        format!("({what} for {over}. where (formerly {} {body}))", self.within())
    }

    fn trace(&mut self) -> Vec<Event> {
        let mut at = 0;
        let choices = if self.roll(3) == 0 { 1 } else { 2 };
        (0..3 + self.roll(7))
            .map(|_| {
                at += self.roll(4) as i64;
                let kind = ["request", "request", "response", "error"][self.roll(choices * 2) as usize];
                let user = ["ann", "bob"][self.roll(choices) as usize];
                Event::builder_for(&["D", "Action"], ["A", "B"][self.roll(choices) as usize], kind)
                    .timestamp(at)
                    .principal_for("D::User", user)
                    .resource_for("D::Gate", "g")
                    .field("input", "x", Value::Int(self.roll(choices + 1) as i64))
                    .field("input", "y", Value::Int(self.roll(choices + 1) as i64))
                    .logged_field("requestId", Value::String("r".to_owned()))
                    .logged_field("sessionId", Value::String("s".to_owned()))
                    .build()
            })
            .collect()
    }
}

fn decide(
    policies: LoweredPolicySet,
    engine: impl TemporalEngine + 'static,
    partitioned: bool,
    trace: &[Event],
) -> Result<Vec<Option<bool>>, String> {
    let mut builder = Authorizer::builder(policies).temporal_engine(engine);
    if partitioned {
        builder = builder.partition_temporal();
    }
    let mut authorizer = builder.build().map_err(|e| format!("{e:?}"))?;
    Ok(trace.iter().map(|event| authorizer.is_authorized(event).map(|response| response.allowed())).collect())
}

/// Compares this many formulas; whether all agreed.
pub(crate) fn run(formulas: u64) -> Result<bool, String> {
    let schema = PolicySchema::from_cedarschema_str(SCHEMA).map_err(|e| format!("{e:?}"))?;
    let service = ServiceSchema::builder().build().map_err(|e| format!("{e:?}"))?;
    let (mut taken, mut refused, mut outside, mut decisions, mut allowed, mut differ) = (0, 0, 0, 0, 0, 0);
    for seed in 0..formulas {
        let mut maker = Maker(seed, 0);
        let formula = maker.formula(1 + seed % 3, &[]);
        let text = format!("permit (principal, action, resource) when temporal {{ {formula} }};");
        let lower = || LoweredPolicySet::from_str(&text, &service, &schema);
        if lower().is_err() {
            refused += 1;
            continue;
        }
        let partitioned = seed % 2 == 0;
        let mut counted = false;
        for _ in 0..3 {
            let trace = maker.trace();
            let tally = Arc::new(Mutex::new(Tally::default()));
            let lowered = || lower().map_err(|e| format!("{e:?}"));
            let got = decide(lowered()?, Engine::new(tally.clone()), partitioned, &trace)?;
            if !tally.lock().map_err(|e| e.to_string())?.outside.is_empty() {
                outside += 1;
                break;
            }
            let want = decide(lowered()?, InMemoryTemporalEngine::new(), partitioned, &trace)?;
            decisions += want.iter().flatten().count();
            allowed += want.iter().flatten().filter(|allow| **allow).count();
            if got != want {
                differ += 1;
                println!("  differs, seed {seed}: {formula}\n    needed {want:?}\n    got    {got:?}");
            }
            counted = true;
        }
        taken += u64::from(counted);
    }
    println!(
        "random    {taken} formulas compared with Dogwood's own engine on three traces each: {decisions} decisions, {allowed} of \
         them to allow, {differ} traces differ ({outside} formulas outside, {refused} refused by Dogwood)"
    );
    Ok(differ == 0)
}
