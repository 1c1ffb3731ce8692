// The page: what is followed, and what buttons do.
import * as api from './api.js';
import { Guest } from './guest.js';
import * as model from './model.js';
import * as rows from './rows.js';
import { Uploads } from './upload.js';

const at = (id) => document.getElementById(id);
const kinds = { virtualmachines: new Map(), virtualmachineinstances: new Map() };
const read = new Set();
const problems = new Map();
const guest = new Guest();
const uploads = new Uploads(() => update());
let offered = null; // whether virt-api takes images; it is asked when the first VM waits for one
let migrates = false; // whether the user may move the guests of the namespace
let following = null;
let followed = null; // which namespace
let said = new Map();

// The namespace is in the address, so that it can be kept as a bookmark. What is in names of
// namespaces needs no escapes there.
const namespace = () => location.hash.slice(1);

/** follow begins anew. What is there stays until it is read again, if it is the same that is followed. */
function follow() {
  following?.abort();
  following = new AbortController();
  const { signal } = following;
  const same = followed === namespace();
  followed = namespace();
  read.clear();
  problems.clear();
  for (const resource of Object.keys(kinds)) {
    if (!same) kinds[resource] = new Map();
    api.follow({ namespace: namespace(), resource, key: model.key, signal,
      changed: (objects) => { kinds[resource] = objects; read.add(resource); update(); },
      problem: (error) => { problems.set(resource, error); showLink(); } });
  }
  if (!same) migrates = false;
  // Who gets no answer is offered no migration until the page is looked at again.
  api.mayMigrate(namespace()).then((may) => { if (!signal.aborted) { migrates = may; update(); } }, () => {});
  at('namespace').value = namespace();
  document.title = namespace() ? `${namespace()} – virtual machines` : 'Virtual machines';
  update();
}

let due = false;

/** update shows what there is, once for all that changes at a time. */
function update() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; show(); });
}

function show() {
  const all = model.machines(kinds.virtualmachines, kinds.virtualmachineinstances);
  const complete = read.size === Object.keys(kinds).length;
  const wanted = at('filter').value.trim().toLowerCase();
  const shown = all.filter((m) => m.name.includes(wanted));
  const now = Date.now();
  rows.render(at('machines'), shown, { withNamespace: !namespace(), now, migrates, chosen, images: (machine) => model.images(machine, uploads.of(machine), offered === true, now),
    picked: (machine, volume, file) => uploads.start(machine, volume, file), cancelled: (machine, volume) => uploads.of(machine).get(volume)?.cancel() });
  if (offered === null && all.some((m) => model.awaited(m).length > 0)) offer();
  showSummary(all, shown, complete);
  showLink();
  if (!complete) return;
  tell(all);
  guest.update(all);
}

/** offer finds out whether images can be uploaded. Who gets no answer is offered nothing until a VM's state changes. */
async function offer() {
  offered = false;
  try {
    offered = await api.takesUploads();
  } catch {
    offered = null;
    return;
  }
  update();
}

function showSummary(all, shown, complete) {
  const running = all.filter((m) => model.tone(model.state(m)) === 'good').length;
  const count = all.length === 1 ? '1 machine' : `${all.length} machines`;
  at('summary').textContent = all.length ? `${count}, ${running} running${shown.length < all.length ? `, ${shown.length} shown` : ''}` : '';
  at('empty').hidden = !complete || shown.length > 0;
  at('none').textContent = all.length ? 'No machine has that in its name.' : namespace() ? `No virtual machines in ${namespace()}.` : 'No virtual machines yet.';
  const names = [...new Set(all.map((m) => m.namespace))];
  const list = at('namespaces');
  // Those that were seen stay: with one chosen, no other is.
  for (const name of names) if (![...list.options].some((o) => o.value === name)) list.append(new Option(name, name));
}

function showLink() {
  const problem = [...problems.values()].find((p) => p);
  const link = at('link');
  const complete = read.size === Object.keys(kinds).length;
  const word = problem ? 'not connected' : complete ? 'live' : 'connecting';
  if (link.textContent !== word) link.textContent = word;
  link.dataset.tone = problem ? 'bad' : complete ? 'good' : 'busy';
  let text = problem?.message ?? '';
  if (problem?.code === 403 && !namespace()) text += '. Choose a namespace above whose machines you may see.';
  if (at('problem').textContent !== text) at('problem').textContent = text;
  at('problem').hidden = !text;
}

/** tell says which states changed, to those who do not see it. */
function tell(all) {
  const now = new Map(all.map((m) => [m.key, model.state(m)]));
  const news = [...now].filter(([key, word]) => said.has(key) && said.get(key) !== word).map(([key, word]) => `${key.split('/')[1]}: ${word}`);
  said = now;
  if (news.length) at('news').textContent = news.join(', ');
}

const questions = {
  stop: { title: 'Stop', text: (seconds) => `Its guest is asked to shut down, and switched off after ${seconds} s.` },
  migrate: { title: 'Migrate', text: () => 'Its guest is copied to another node, and runs on meanwhile.' },
  restart: { title: 'Restart', text: (seconds) => `Its guest is asked to shut down, and switched off after ${seconds} s. Then it starts anew.` },
};

async function confirmed(machine, verb) {
  const question = questions[verb];
  if (!question) return true;
  const seconds = machine.vmi?.spec?.terminationGracePeriodSeconds ?? machine.vm.spec?.template?.spec?.terminationGracePeriodSeconds ?? 30;
  at('confirm-title').textContent = `${question.title} ${machine.name}?`;
  at('confirm-text').textContent = question.text(seconds);
  at('confirm-yes').textContent = question.title;
  const dialog = at('confirm');
  dialog.returnValue = '';
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener('close', resolve, { once: true }));
  return dialog.returnValue === 'yes';
}

/** chosen does what a button of a machine is for. */
async function chosen(machine, action) {
  if (!action.verb) {
    guest.open(machine, action.id);
    return;
  }
  rows.say(machine.key, '');
  if (!await confirmed(machine, action.verb)) return;
  rows.busy(machine.key, action.id, true);
  try {
    await api.act(machine, action.verb);
  } catch (error) {
    rows.say(machine.key, error.message);
  } finally {
    rows.busy(machine.key, action.id, false);
  }
}

window.addEventListener('beforeunload', (event) => { if (uploads.active) event.preventDefault(); });
document.querySelector('.which').addEventListener('submit', (event) => event.preventDefault());
at('namespace').addEventListener('change', () => { location.hash = at('namespace').value.trim(); });
at('filter').addEventListener('input', update);
window.addEventListener('hashchange', follow);
document.addEventListener('keydown', (event) => {
  const { target } = event;
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector('dialog[open]')) return;
  if (event.key === '/' && target.tagName !== 'INPUT') {
    event.preventDefault();
    at('filter').focus();
  } else if ((event.key === 'ArrowDown' || event.key === 'ArrowUp') && target.closest('.actions')) {
    event.preventDefault();
    rows.step(target, event.key === 'ArrowDown');
  }
});
// Browsers open six connections to a server, for all tabs: one that is not looked at gives
// its two back.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) following?.abort();
  else follow();
});
setInterval(update, 10000); // ages
follow();
