package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// project is where the documents' names begin.
const project = "https://github.com/kubeqemu/kubeqemu"

// An unknown value is NOASSERTION in SPDX.
const unknown = "NOASSERTION"

// spdx is a document of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3).
type spdx struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string        `json:"SPDXID"`
	Name          string        `json:"name"`
	Version       string        `json:"versionInfo,omitempty"`
	Download      string        `json:"downloadLocation"`
	FilesAnalyzed bool          `json:"filesAnalyzed"`
	Checksums     []checksum    `json:"checksums,omitempty"`
	References    []externalRef `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// document returns the document of a file with these parts.
func document(name, version string, created time.Time, p parts) ([]byte, error) {
	const self = "SPDXRef-DOCUMENT"
	whole := spdxPackage{ID: "SPDXRef-" + identifier(name), Name: name, Version: version, Download: unknown,
		Checksums: []checksum{{"SHA256", p.sum}}}
	d := spdx{Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: self, Name: name + " " + version,
		Namespace: fmt.Sprintf("%s/spdx/%s-%s-%s", project, name, version, p.sum),
		Creation: creation{Created: created.Format(time.RFC3339),
			Creators: []string{"Organization: The Kubeqemu Authors", "Tool: kubeqemu-sbom-" + version}},
		Packages:      []spdxPackage{whole},
		Relationships: []relationship{{self, "DESCRIBES", whole.ID}}}
	for _, b := range p.packages {
		d.contain(whole.ID, "deb-"+b.name+"-"+b.version+"-"+b.arch, b.name, b.version,
			"pkg:deb/debian/"+escape(b.name)+"@"+escape(b.version)+"?arch="+escape(b.arch))
	}
	for _, m := range p.modules {
		purl := "pkg:golang/" + escapePath(m.path)
		if m.version != "" {
			purl += "@" + escape(m.version)
		}
		d.contain(whole.ID, "go-"+m.path+"-"+m.version, m.path, m.version, purl)
	}
	seen := map[string]string{}
	for _, one := range d.Packages {
		if other := seen[one.ID]; other != "" {
			return nil, fmt.Errorf("name the parts: %s and %s have the same identifier %s", other, one.Name, one.ID)
		}
		seen[one.ID] = one.Name
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		return nil, fmt.Errorf("write the document: %w", err)
	}
	return text.Bytes(), nil
}

// contain adds a package that the whole contains.
func (d *spdx) contain(whole, id, name, version, purl string) {
	part := spdxPackage{ID: "SPDXRef-" + identifier(id), Name: name, Version: version, Download: unknown,
		References: []externalRef{{"PACKAGE-MANAGER", "purl", purl}}}
	d.Packages = append(d.Packages, part)
	d.Relationships = append(d.Relationships, relationship{whole, "CONTAINS", part.ID})
}

var notInIdentifiers = regexp.MustCompile(`[^A-Za-z0-9.-]`)

// identifier returns a text with what SPDX has no room for in identifiers replaced by its code.
func identifier(text string) string {
	return notInIdentifiers.ReplaceAllStringFunc(text, func(c string) string { return fmt.Sprintf("-%X", []byte(c)) })
}

// escape returns a text as a part of a package URL, in which only letters, digits and -._~ stand for themselves.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// escapePath escapes the names of a path, and leaves the slashes.
func escapePath(path string) string {
	names := strings.Split(path, "/")
	for i := range names {
		names[i] = escape(names[i])
	}
	return strings.Join(names, "/")
}
