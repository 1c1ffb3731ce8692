// The list: one row for each machine, kept while it is there, so that focus stays.
import * as model from './model.js';

const labels = { start: 'Start', stop: 'Stop', restart: 'Restart', migrate: 'Migrate', 'migrate-cancel': 'Cancel migration', pause: 'Pause', unpause: 'Unpause', console: 'Console', screen: 'Screen' };
const template = document.getElementById('row');
const rows = new Map();

/** render shows machines, in this order, in the list. */
export function render(list, machines, { withNamespace, now, migrates, chosen, images, picked, cancelled }) {
  const shown = new Set(machines.map((m) => m.key));
  for (const [key, row] of rows) {
    if (shown.has(key)) continue;
    if (row.element.contains(document.activeElement)) neighbour(row.element)?.querySelector('button').focus();
    row.element.remove();
    rows.delete(key);
  }
  machines.forEach((machine, at) => {
    let row = rows.get(machine.key);
    if (!row) rows.set(machine.key, row = newRow(chosen, picked, cancelled));
    if (list.children[at] !== row.element) list.insertBefore(row.element, list.children[at] ?? null);
    row.update(machine, withNamespace, now, migrates, images(machine));
  });
}

/** say puts an error beside the machine that it is about. */
export function say(key, text) {
  rows.get(key)?.say(text);
}

/** busy marks the button while the API server is asked. */
export function busy(key, id, is) {
  rows.get(key)?.element.querySelector(`[data-id=${id}]`)?.setAttribute('aria-busy', is);
}

/** step goes to the same button of the next machine, or of the one before. */
export function step(from, down) {
  const row = from.closest('.machine');
  const next = down ? row.nextElementSibling : row.previousElementSibling;
  (next?.querySelector(`[data-id=${from.dataset.id}]`) ?? next?.querySelector('button'))?.focus();
}

const neighbour = (element) => element.nextElementSibling ?? element.previousElementSibling;

/** set changes what is there only if it is something else: live regions would speak. */
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === '';
}

function newRow(chosen, picked, cancelled) {
  const element = template.content.firstElementChild.cloneNode(true);
  const part = (name) => element.querySelector(`.${name}`);
  const row = { element, machine: null, before: '' };
  row.say = (text) => set(part('refusal'), text);
  row.update = (machine, withNamespace, now, migrates, images) => {
    row.machine = machine;
    const word = model.state(machine);
    // What was refused was about what it was then.
    if (row.before !== word) row.say('');
    row.before = word;
    set(part('namespace'), withNamespace ? machine.namespace : '');
    set(part('name'), machine.name);
    set(part('state'), word);
    const trouble = model.problem(machine, now);
    part('state').dataset.tone = model.tone(word, trouble);
    // Lines break between facts only.
    set(part('facts'), model.facts(machine, now).map((fact) => fact.replaceAll(' ', '\u00a0')).join(' · '));
    setFilling(part('filling'), machine, images);
    setImages(part('images'), machine, images, (volume, file) => picked(row.machine, volume, file), (volume) => cancelled(row.machine, volume));
    set(part('trouble'), trouble);
    setActions(part('actions'), machine, migrates, (action) => chosen(row.machine, action));
  };
  return row;
}

/** setFilling shows how far the disks are that a VM waits for, or how far a guest is that moves. */
function setFilling(element, machine, images) {
  const filling = model.filling(machine), moving = model.moving(machine);
  const shown = filling ?? moving;
  // Of the one disk that this page fills, the upload's own bar says more.
  element.hidden = !shown || (filling !== null && images.some((i) => i.percent !== null) && !filling.text.includes('; '));
  if (element.hidden) return;
  const [bar, text] = element.children;
  if (shown.percent === null) bar.removeAttribute('value'); // it moves, and says nothing
  else bar.value = shown.percent;
  bar.setAttribute('aria-label', filling ? `Disks of ${machine.name}` : `Migration of ${machine.name}`);
  set(text, shown.text);
}

const imageTemplate = document.getElementById('image');

/** setImages shows a line for each image that is awaited or on its way. */
function setImages(list, machine, images, picked, cancelled) {
  for (const line of [...list.children]) if (!images.some((i) => i.volume === line.dataset.volume)) line.remove();
  images.forEach((image, at) => {
    let line = [...list.children].find((l) => l.dataset.volume === image.volume);
    if (!line) {
      line = imageTemplate.content.firstElementChild.cloneNode(true);
      line.dataset.volume = image.volume;
      const file = line.querySelector('input');
      line.querySelector('.pick').addEventListener('click', () => file.click());
      line.querySelector('.cancel').addEventListener('click', () => cancelled(image.volume));
      file.addEventListener('change', () => {
        if (file.files.length) picked(image.volume, file.files[0]);
        file.value = ''; // the same file may be chosen again
      });
      list.insertBefore(line, list.children[at] ?? null);
    }
    const part = (name) => line.querySelector(name);
    const sending = image.percent !== null;
    const [pick, cancel] = [part('.pick'), part('.cancel')];
    const had = document.activeElement;
    pick.textContent = images.length > 1 ? `Upload image into ${image.volume}` : 'Upload image';
    pick.setAttribute('aria-label', `Upload image into ${image.volume}`);
    cancel.setAttribute('aria-label', `Cancel upload into ${image.volume}`);
    [pick.hidden, cancel.hidden, part('progress').hidden] = [!image.button, !sending, !sending];
    // What had the focus has gone, and what takes its place has come.
    if (had === pick && pick.hidden) cancel.focus();
    if (had === cancel && cancel.hidden) pick.focus();
    if (sending) part('progress').value = image.percent;
    part('progress').setAttribute('aria-label', `Upload into ${image.volume}`);
    set(part('span'), image.text);
    set(part('.error'), image.error);
  });
}

function setActions(group, machine, migrates, chosen) {
  group.setAttribute('aria-label', `Actions of ${machine.name}`);
  const actions = model.actions(machine, migrates);
  for (const button of [...group.children]) if (!actions.some((a) => a.id === button.dataset.id)) button.remove();
  actions.forEach((action, at) => {
    let button = group.querySelector(`[data-id=${action.id}]`);
    if (!button) {
      button = document.createElement('button');
      button.type = 'button';
      button.dataset.id = action.id;
      group.insertBefore(button, group.children[at] ?? null);
      // It can be focused when it does nothing, so that focus is not lost when it begins to.
      button.addEventListener('click', () => {
        if (button.getAttribute('aria-disabled') !== 'true' && button.getAttribute('aria-busy') !== 'true') chosen(button.action);
      });
    }
    button.action = action;
    const label = labels[action.verb ?? action.id];
    set(button, label);
    button.setAttribute('aria-label', `${label} ${machine.name}`);
    button.setAttribute('aria-disabled', !action.enabled);
    button.title = action.why; // screen readers read it as the description
  });
}
