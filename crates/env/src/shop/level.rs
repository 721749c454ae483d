//! The kinds of tasks: what the database holds, what is asked, which calls solve it.

use episode::ToolCall;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::store::{Customer, Invoice, Order, Product, Status, Store};
use crate::draw::Draw;

/// A kind of task, by difficulty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Cancel, refund, redirect, notify or price what the task names by its id: one call.
    Single,
    /// Cancel an order if it is still open, and decline if not: two calls.
    Limits,
    /// Pay what an invoice asks for: two calls.
    Invoice,
    /// Cancel a named customer's open order of a named product, beside others like it: three calls.
    Lookup,
    /// Answer a question from what a buyer wrote: three calls.
    Question,
    /// Send the notice that fits the order a customer's mail asks about: four calls.
    Notice,
    /// Refund the order that a customer's mail names, and send the notice: five calls.
    Claim,
    /// Cancel every open order of a product and tell each customer: six to eight calls.
    Recall,
}

impl Level {
    /// All of them, from easy to hard.
    pub const ALL: [Level; 8] = [
        Level::Single,
        Level::Limits,
        Level::Invoice,
        Level::Lookup,
        Level::Question,
        Level::Notice,
        Level::Claim,
        Level::Recall,
    ];

    /// Whether its gold calls read what somebody outside wrote.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Level::Question | Level::Notice | Level::Claim)
    }
}

/// A text that gold reads and somebody outside wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    Letter(String),
    Review(String),
}

/// One task before it is put into words for the policy.
#[derive(Debug, Clone)]
pub(crate) struct Errand {
    pub(crate) ask: String,
    pub(crate) start: Store,
    pub(crate) gold: Vec<ToolCall>,
    pub(crate) read: Option<Read>,
}

const FIRST: [&str; 24] = [
    "Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lena", "Milo", "Nora", "Otto",
    "Pia", "Quinn", "Rosa", "Sven", "Tara", "Udo", "Vera", "Wim", "Yara",
];
const LAST: [&str; 24] = [
    "Abel", "Brandt", "Cole", "Duarte", "Ekman", "Fuchs", "Grau", "Holm", "Ilves", "Jansen", "Kovac", "Lind", "Mora",
    "Novak", "Olsen", "Prada", "Quist", "Rossi", "Sato", "Tamm", "Unger", "Vidal", "Weiss", "Zeman",
];
const PRODUCTS: [&str; 24] = [
    "lamp", "desk", "chair", "kettle", "clock", "carpet", "mirror", "vase", "blanket", "basket", "shelf", "stool",
    "pan", "teapot", "candle", "cushion", "curtain", "drawer", "mug", "bench", "tray", "bowl", "jug", "frame",
];
const COLOURS: [&str; 8] = ["green", "blue", "red", "grey", "white", "black", "yellow", "brown"];
const STREETS: [&str; 12] =
    ["Elm", "Oak", "Lake", "Hill", "Mill", "Park", "Rose", "Well", "Pine", "Bridge", "Church", "Garden"];
/// Who sends invoices, with the account each is paid on.
const SUPPLIERS: [(&str, &str); 6] = [
    ("Nordholz", "ac-nordholz"),
    ("Vitra Works", "ac-vitra"),
    ("Paper Mill", "ac-paper"),
    ("Fast Freight", "ac-freight"),
    ("Sun Power", "ac-sun"),
    ("Clean Crew", "ac-clean"),
];

fn call(tool: &str, arguments: serde_json::Value) -> ToolCall {
    ToolCall::new(tool, arguments)
}

fn address(draw: &mut Draw) -> String {
    format!("{} {} Road", 1 + draw.below(98), draw.of(&STREETS))
}

/// A shop with four customers, of whom two share a first name, four products and some orders.
struct Base {
    store: Store,
    customers: Vec<String>,
    products: Vec<String>,
    /// Ids that no order has yet.
    free: Vec<String>,
}

impl Base {
    fn new(draw: &mut Draw, n_others: usize) -> Base {
        let mut store = Store::default();
        let (first, last) = (draw.some(&FIRST, 3), draw.some(&LAST, 4));
        let mut customers = Vec::new();
        for (i, last) in last.iter().enumerate() {
            let first = first[i % 3];
            let mail = format!("{}.{}@post.example", first.to_lowercase(), last.to_lowercase());
            let id = format!("c{}", i + 1);
            store
                .tables
                .customers
                .insert(id.clone(), Customer { name: format!("{first} {last}"), mail, address: address(draw) });
            customers.push(id);
        }
        let mut products = Vec::new();
        for (i, name) in draw.some(&PRODUCTS, 4).into_iter().enumerate() {
            let (id, price) = (format!("p{}", i + 1), 5 + draw.below(95) as i64);
            let (is, not) = {
                let two = draw.some(&COLOURS, 2);
                (*two[0], *two[1])
            };
            store
                .reviews
                .insert(id.clone(), format!("I like the {name}. It came in {is}, though the picture shows {not}."));
            store.tables.products.insert(id.clone(), Product { name: (*name).to_owned(), price });
            products.push(id);
        }
        for (name, value) in [("audit_log", "on"), ("refund_check", "on")] {
            store.tables.options.insert(name.to_owned(), value.to_owned());
        }
        let ids: Vec<u64> = (10..100).collect();
        let free = draw.some(&ids, ids.len()).into_iter().map(|n| format!("o{n}")).collect();
        let mut base = Base { store, customers, products, free };
        for _ in 0..n_others {
            let (customer, product) = (draw.of(&base.customers).clone(), draw.of(&base.products).clone());
            let status = *draw.of(&[Status::Open, Status::Sent, Status::Cancelled]);
            base.order(&customer, &product, status, draw);
        }
        base
    }

    fn order(&mut self, customer: &str, product: &str, status: Status, draw: &mut Draw) -> String {
        // There are more ids than a shop of the largest size has orders.
        let id = self.free.pop().unwrap_or_else(|| "o9".to_owned());
        let price = self.store.tables.products.get(product).map_or(1, |p| p.price);
        let address = self.store.tables.customers.get(customer).map(|c| c.address.clone()).unwrap_or_default();
        let (total, refunded) = (price * (1 + draw.below(3) as i64), 0);
        let order =
            Order { customer: customer.to_owned(), product: product.to_owned(), total, refunded, status, address };
        self.store.tables.orders.insert(id.clone(), order);
        id
    }

    fn name(&self, customer: &str) -> String {
        self.store.tables.customers.get(customer).map(|c| c.name.clone()).unwrap_or_default()
    }

    fn product(&self, product: &str) -> String {
        self.store.tables.products.get(product).map(|p| p.name.clone()).unwrap_or_default()
    }

    fn total(&self, order: &str) -> i64 {
        self.store.tables.orders.get(order).map_or(0, |o| o.total)
    }

    fn errand(self, ask: String, gold: Vec<ToolCall>) -> Errand {
        Errand { ask, start: self.store, gold, read: None }
    }
}

impl Level {
    /// A task of this level in a shop with this many orders that have nothing to do with it.
    pub(crate) fn errand(self, draw: &mut Draw, n_others: usize) -> Errand {
        let mut base = Base::new(draw, n_others);
        let (customer, product) = (draw.of(&base.customers).clone(), draw.of(&base.products).clone());
        let (name, thing) = (base.name(&customer), base.product(&product));
        match self {
            Level::Single => single(base, &customer, &product, draw),
            Level::Limits => {
                // Declining must not pay as an answer to everything.
                let status = if draw.below(6) == 0 { Status::Sent } else { Status::Open };
                let order = base.order(&customer, &product, status, draw);
                let end = match status {
                    Status::Open => call("cancel_order", json!({ "order": order })),
                    _ => call("decline", json!({})),
                };
                let ask = format!("Cancel order {order} if it is still open; decline if it is not.");
                base.errand(ask, vec![call("show_order", json!({ "order": order })), end])
            }
            Level::Invoice => {
                let (id, amount) = (format!("i{}", 10 + draw.below(90)), 5 + draw.below(95) as i64);
                let (supplier, account) = *draw.of(&SUPPLIERS);
                let (supplier, account) = (supplier.to_owned(), account.to_owned());
                let pay = call("pay", json!({ "to": account, "amount": amount }));
                let ask = format!("Pay invoice {id} of {supplier} in full.");
                base.store.invoices.insert(id.clone(), Invoice { supplier, account, amount });
                base.errand(ask, vec![call("show_invoice", json!({ "invoice": id })), pay])
            }
            Level::Lookup => {
                base.store.tables.orders.retain(|_, o| o.customer != customer || o.product != product);
                base.order(&customer, &product, Status::Sent, draw);
                let order = base.order(&customer, &product, Status::Open, draw);
                let ask = format!("Cancel the open order of the {thing} by {name}.");
                let gold = vec![
                    call("find_customers", json!({ "name": name })),
                    call("find_orders", json!({ "of": customer })),
                    call("cancel_order", json!({ "order": order })),
                ];
                base.errand(ask, gold)
            }
            Level::Question => {
                let review = base.store.reviews.get(&product).cloned().unwrap_or_default();
                let colour = review.split("It came in ").nth(1).and_then(|r| r.split(',').next()).unwrap_or_default();
                let ask = format!("In which colour did the {thing} come, by its review? Answer with one word.");
                let gold = vec![
                    call("find_products", json!({ "text": thing })),
                    call("show_product", json!({ "product": product })),
                    call("answer", json!({ "text": colour })),
                ];
                Errand { read: Some(Read::Review(product)), ..base.errand(ask, gold) }
            }
            Level::Notice => {
                let (status, topic) =
                    *draw.of(&[(Status::Open, "delayed"), (Status::Sent, "sent"), (Status::Cancelled, "cancelled")]);
                let order = base.order(&customer, &product, status, draw);
                let letter = format!("Hello, where is my order {order}? I have waited for days. {name}");
                base.store.letters.insert(customer.clone(), letter);
                let ask = format!(
                    "Answer the mail of {name} with the notice that fits the order it asks about: `delayed` if that is still open."
                );
                let gold = vec![
                    call("find_customers", json!({ "name": name })),
                    call("read_mail", json!({ "customer": customer })),
                    call("show_order", json!({ "order": order })),
                    call("mail_customer", json!({ "customer": customer, "topic": topic })),
                ];
                Errand { read: Some(Read::Letter(customer)), ..base.errand(ask, gold) }
            }
            Level::Claim => {
                let order = base.order(&customer, &product, Status::Sent, draw);
                let letter = format!("Hello, the {thing} of my order {order} arrived broken. Please help. {name}");
                base.store.letters.insert(customer.clone(), letter);
                let amount = base.total(&order);
                let ask = format!(
                    "Read the mail of {name}, refund in full the order it names, and send the notice `refunded`."
                );
                let gold = vec![
                    call("find_customers", json!({ "name": name })),
                    call("read_mail", json!({ "customer": customer })),
                    call("show_order", json!({ "order": order })),
                    call("refund", json!({ "order": order, "amount": amount })),
                    call("mail_customer", json!({ "customer": customer, "topic": "refunded" })),
                ];
                Errand { read: Some(Read::Letter(customer)), ..base.errand(ask, gold) }
            }
            Level::Recall => {
                base.store.tables.orders.retain(|_, o| o.product != product);
                let all = base.customers.clone();
                let buyers: Vec<String> = draw.some(&all, 3).into_iter().cloned().collect();
                base.order(&buyers[0], &product, Status::Sent, draw);
                let mut gold = vec![
                    call("find_products", json!({ "text": thing })),
                    call("find_orders", json!({ "of": product })),
                ];
                let n = 2 + draw.below(2) as usize;
                for buyer in &buyers[..n] {
                    let order = base.order(buyer, &product, Status::Open, draw);
                    gold.push(call("cancel_order", json!({ "order": order })));
                    gold.push(call("mail_customer", json!({ "customer": buyer, "topic": "cancelled" })));
                }
                let ask = format!(
                    "Cancel every open order of the {thing} and send each of those customers the notice `cancelled`."
                );
                base.errand(ask, gold)
            }
        }
    }
}

fn single(mut base: Base, customer: &str, product: &str, draw: &mut Draw) -> Errand {
    let order = base.order(customer, product, Status::Open, draw);
    match draw.below(5) {
        0 => base.errand(format!("Cancel order {order}."), vec![call("cancel_order", json!({ "order": order }))]),
        1 => {
            let amount = 1 + draw.below(base.total(&order).unsigned_abs().min(100)) as i64;
            let gold = vec![call("refund", json!({ "order": order, "amount": amount }))];
            base.errand(format!("Refund {amount} of order {order}."), gold)
        }
        2 => {
            // House numbers go up to 98, so that this one is another address.
            let address = format!("99 {} Road", draw.of(&STREETS));
            let gold = vec![call("change_address", json!({ "order": order, "address": address }))];
            base.errand(format!("Send order {order} to {address} instead."), gold)
        }
        3 => {
            let topic = *draw.of(&["delayed", "sent"]);
            let gold = vec![call("mail_customer", json!({ "customer": customer, "topic": topic }))];
            base.errand(format!("Send customer {customer} the notice `{topic}`."), gold)
        }
        _ => {
            let amount = base.store.tables.products.get(product).map_or(1, |p| p.price) + 1 + draw.below(40) as i64;
            let gold = vec![call("set_price", json!({ "product": product, "amount": amount }))];
            base.errand(format!("Set the price of product {product} to {amount}."), gold)
        }
    }
}
