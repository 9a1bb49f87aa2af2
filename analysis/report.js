const $=(s,r=document)=>[...r.querySelectorAll(s)];
const make=(text,parent,click)=>{const b=document.createElement("button");b.type="button";b.textContent=text;b.onclick=click;
  parent.append(b);return b};
const top_=document.getElementById("buttons"),root=document.documentElement,themes=["system","light","dark"];let at=0;
const theme=make("Theme: system",top_,()=>{at=(at+1)%3;theme.textContent="Theme: "+themes[at];
  if(at)root.dataset.theme=themes[at];else delete root.dataset.theme});
const all=make("Open all panels",top_,()=>{const panels=$("details.panel"),open=panels.some(p=>!p.open);
  panels.forEach(p=>p.open=open);all.textContent=open?"Close all panels":"Open all panels"});
const show=()=>{const t=document.getElementById(location.hash.slice(1));if(t&&t.tagName==="DETAILS")t.open=true};
addEventListener("hashchange",show);show();
$("a[href^='#']").forEach(a=>a.addEventListener("click",()=>{const t=document.getElementById(a.hash.slice(1));
  if(t&&t.tagName==="DETAILS")t.open=true}));
addEventListener("beforeprint",()=>$("details").forEach(d=>d.open=true));
const key=c=>{const t=c.dataset.v??c.textContent.trim().replace("\u2212","-"),n=parseFloat(t);return Number.isNaN(n)?t:n};
$("table[data-sort]").forEach(t=>$("thead th",t).forEach((th,i)=>{
  const b=document.createElement("button");b.type="button";b.append(...th.childNodes);th.append(b);
  b.onclick=()=>{
    const d=th.getAttribute("aria-sort")==="descending"?1:-1;
    $("thead th",t).forEach(h=>h.removeAttribute("aria-sort"));
    th.setAttribute("aria-sort",d>0?"ascending":"descending");
    const rows=$("tbody tr",t).map((r,j)=>[key(r.cells[i]),j,r]);
    rows.sort(([a,j],[c,k])=>d*(typeof a===typeof c?(a>c)-(a<c):typeof a==="number"?-1:1)||j-k);
    t.tBodies[0].append(...rows.map(r=>r[2]))}}));
const quote=t=>/[",\n]/.test(t)?'"'+t.replaceAll('"','""')+'"':t;
const guard=t=>/^[=+@\t\r-]/.test(t)&&Number.isNaN(Number(t))?"'"+t:t;
const csv=t=>$("tr",t).map(r=>[...r.cells].map(c=>quote(guard(c.dataset.v??c.textContent.trim()))).join(",")).join("\n")+"\n";
$("table[data-frame]").forEach(t=>{
  const b=make("Save as CSV",t.closest(".scroll").parentElement,()=>{
    const a=document.createElement("a");a.href=URL.createObjectURL(new Blob([csv(t)],{type:"text/csv"}));
    a.download=t.dataset.frame+".csv";a.click();URL.revokeObjectURL(a.href)});
  b.className="csv";t.closest(".scroll").after(b)});
