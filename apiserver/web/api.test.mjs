// node --test apiserver/web/api.test.mjs, or make web-check
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { follow } from './page/api.js';

test('watches that end at once are not asked for without pause', async () => {
  let lists = 0;
  let watches = 0;
  globalThis.fetch = async (url, { signal }) => {
    await new Promise(setImmediate);
    signal.throwIfAborted();
    if (!url.searchParams.get('watch')) {
      lists++;
      return new Response(JSON.stringify({ metadata: { resourceVersion: '1' }, items: [] }));
    }
    if (watches++ === 0) setTimeout(() => end.abort(), 500);
    return new Response('');
  };
  const end = new AbortController();
  await follow({ resource: 'virtualmachines', key: (object) => object.metadata.uid, changed() {}, problem() {}, signal: end.signal });
  assert.equal(lists, 1);
  assert.equal(watches, 1);
});
